// SPDX-License-Identifier: Apache-2.0
//! Which of several controllers leads. Each has a lease in the store, and whoever puts its name under its own first leads, until that lease
//! ends; the name goes with it.
//!
//! Two things keep a leader that was paused from doing harm. It takes itself for the leader only as long as its lease holds by its own
//! clock, counted from *before* the request that renewed it. And every write compares the term (the revision at which the leader's name
//! was put), so that one which does not know yet that it is deposed is refused by the store itself, whatever its clock says.

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The term: no other one has this number.
    pub term: i64,
    /// The lease under which it leads.
    pub lease: i64,
    /// Where it is.
    pub url: String,
}

/// The store, as far as leading goes.
pub trait Ballot {
    /// A new lease of so many seconds.
    fn grant(&mut self, ttl_s: u64) -> Result<i64, String>;
    /// Renews a lease; false: it has ended.
    fn renew(&mut self, lease: i64) -> Result<bool, String>;
    /// Ends a lease.
    fn give_up(&mut self, lease: i64) -> Result<(), String>;
    /// Puts the name of `me` as that of the leader, if there is none; who leads then.
    fn stand(&mut self, lease: i64, me: &str) -> Result<Leader, String>;
}

/// What a controller is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Office {
    /// It leads in a term.
    Leads(i64),
    /// Somebody else leads, there.
    Follows(String),
    /// Nobody leads as far as it knows.
    Alone,
}

/// Whether a writer must lead, and may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// It need not: the folder of a first controller is made, or tests.
    Open,
    /// It must, and does not.
    Closed,
    /// It leads in this term, and may do nothing yet but finish what others began.
    Settling(i64),
    /// It must, and does in this term: the revision of the store at which the leader's name was put.
    Term(i64),
}

impl Fence {
    /// As it is in an office: of another term nothing is written.
    pub fn within(self, office: &Office) -> Fence {
        match (self, office) {
            (Fence::Term(term) | Fence::Settling(term), Office::Leads(now)) if term == *now => self,
            _ => Fence::Closed,
        }
    }
}

/// A controller's part in it.
#[derive(Clone, Debug)]
pub struct Leadership {
    me: String,
    ttl_s: u64,
    lease: Option<i64>,
    /// Until when what it is holds at most.
    until_ms: u64,
    office: Office,
}

impl Leadership {
    /// Of a controller that is reached at a URL.
    pub fn new(me: &str, ttl_s: u64) -> Leadership {
        Leadership { me: me.into(), ttl_s, lease: None, until_ms: 0, office: Office::Alone }
    }

    /// What it is at a time.
    pub fn office(&self, now_ms: u64) -> Office {
        match now_ms < self.until_ms {
            true => self.office.clone(),
            false => Office::Alone,
        }
    }

    /// Renews its lease and stands for leader; to be called several times while a lease lasts. `now_ms` is read before. An
    /// error: nothing is known anew, and what it is ends with its lease.
    pub fn step(&mut self, now_ms: u64, ballot: &mut dyn Ballot) -> Result<(), String> {
        let renewed = match self.lease {
            Some(lease) => ballot.renew(lease)?,
            None => false,
        };
        let lease = match self.lease.filter(|_| renewed) {
            Some(lease) => lease,
            None => {
                // Its name, if it led, has gone with the lease.
                self.office = Office::Alone;
                ballot.grant(self.ttl_s)?
            }
        };
        self.lease = Some(lease);
        let leader = ballot.stand(lease, &self.me)?;
        self.office = match leader.lease == lease {
            true => Office::Leads(leader.term),
            false => Office::Follows(leader.url),
        };
        self.until_ms = now_ms + self.ttl_s * 1000;
        Ok(())
    }

    /// Lets somebody else lead at once.
    pub fn leave(&mut self, ballot: &mut dyn Ballot) {
        self.office = Office::Alone;
        if let Some(lease) = self.lease.take() {
            // If this fails it ends by itself.
            let _ = ballot.give_up(lease);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use std::collections::BTreeMap;

    const TTL_S: u64 = 5;

    /// A store with a clock of its own.
    #[derive(Default)]
    struct World {
        now_ms: u64,
        next: i64,
        leases: BTreeMap<i64, u64>,
        leader: Option<Leader>,
    }

    impl World {
        fn pass(&mut self, ms: u64) {
            self.now_ms += ms;
            let now = self.now_ms;
            self.leases.retain(|_, until| *until > now);
            self.leader.take_if(|l| !self.leases.contains_key(&l.lease));
        }
    }

    impl Ballot for World {
        fn grant(&mut self, ttl_s: u64) -> Result<i64, String> {
            self.next += 1;
            self.leases.insert(self.next, self.now_ms + ttl_s * 1000);
            Ok(self.next)
        }

        fn renew(&mut self, lease: i64) -> Result<bool, String> {
            let until = self.now_ms + TTL_S * 1000;
            Ok(self.leases.get_mut(&lease).map(|at| *at = until).is_some())
        }

        fn give_up(&mut self, lease: i64) -> Result<(), String> {
            self.leases.remove(&lease);
            self.pass(0);
            Ok(())
        }

        fn stand(&mut self, lease: i64, me: &str) -> Result<Leader, String> {
            if !self.leases.contains_key(&lease) {
                return Err("no such lease".into());
            }
            self.next += 1;
            let term = self.next;
            Ok(self.leader.get_or_insert_with(|| Leader { term, lease, url: me.into() }).clone())
        }
    }

    /// One that does not answer.
    struct Away;

    impl Ballot for Away {
        fn grant(&mut self, _: u64) -> Result<i64, String> {
            Err("away".into())
        }
        fn renew(&mut self, _: i64) -> Result<bool, String> {
            Err("away".into())
        }
        fn give_up(&mut self, _: i64) -> Result<(), String> {
            Err("away".into())
        }
        fn stand(&mut self, _: i64, _: &str) -> Result<Leader, String> {
            Err("away".into())
        }
    }

    #[test]
    fn one_leads_and_the_next_one_when_it_is_gone() {
        let (mut world, mut a, mut b) = (World::default(), Leadership::new("a", TTL_S), Leadership::new("b", TTL_S));
        a.step(0, &mut world).unwrap();
        b.step(0, &mut world).unwrap();
        assert!(matches!(a.office(0), Office::Leads(_)));
        assert_eq!(b.office(0), Office::Follows("a".into()));
        // It leads no longer than its lease, whatever it hears.
        assert!(a.step(4000, &mut Away).is_err());
        assert!(matches!(a.office(4999), Office::Leads(_)));
        assert_eq!(a.office(5000), Office::Alone);
        world.pass(5000);
        b.step(5000, &mut world).unwrap();
        let Office::Leads(term) = b.office(5000) else { panic!("{b:?}") };
        // It comes back as somebody who follows.
        a.step(6000, &mut world).unwrap();
        assert_eq!(a.office(6000), Office::Follows("b".into()));
        b.leave(&mut world);
        a.step(6001, &mut world).unwrap();
        assert!(matches!(a.office(6001), Office::Leads(later) if later > term));
    }

    #[test]
    fn never_do_two_lead_whatever_is_paused_or_unheard() {
        let seed = rand::rng().next_u64();
        println!("seed {seed}");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut world = World::default();
        let mut all: Vec<Leadership> = (0..3).map(|n| Leadership::new(&n.to_string(), TTL_S)).collect();
        let (mut led, mut terms) = (0, 0);
        for _ in 0..20_000 {
            // A request is answered after a while: the lease counts from before it for the one, from then on for the other.
            let (begun, one) = (world.now_ms, rng.random_range(0..3));
            world.pass(rng.random_range(0..1500));
            let _ = match rng.random_range(0..10) {
                0 => all[one].step(begun, &mut Away),
                1 => {
                    all[one].leave(&mut world);
                    Ok(())
                }
                _ => all[one].step(begun, &mut world),
            };
            let leading = all.iter().filter_map(|l| match l.office(world.now_ms) {
                Office::Leads(term) => Some(term),
                _ => None,
            });
            let leading: Vec<i64> = leading.collect();
            assert!(leading.len() <= 1, "{leading:?}: {all:?}");
            if let Some(term) = leading.first() {
                // And it is the one whose term the store compares.
                assert_eq!(world.leader.as_ref().map(|l| l.term), Some(*term));
                led += 1;
                terms = terms.max(*term);
            }
        }
        assert!(led > 5_000 && terms > 100, "{led} {terms}");
    }
}
