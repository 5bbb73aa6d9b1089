// SPDX-License-Identifier: Apache-2.0
//! Showing sessions: in pieces, so that nobody holds all of them.

use super::*;

impl Filter {
    /// Whether a session is wanted.
    pub fn matches(&self, s: &SessionInfo) -> bool {
        fn is<T: PartialEq>(wanted: &Option<T>, have: T) -> bool {
            wanted.as_ref().is_none_or(|w| *w == have)
        }
        is(&self.vni, s.inner.vni())
            && is(&self.proto, s.inner.proto())
            && is(&self.vm, s.inner.vm())
            && is(&self.vm_port, s.inner.vm_port())
            && is(&self.public, s.outer.public())
            && is(&self.public_port, s.outer.public_port())
            && is(&self.remote, s.inner.remote())
            && is(&self.remote_port, s.inner.remote_port())
            && is(&self.state, s.state)
    }
}

impl Tracker {
    /// A session's copy. The caller holds a guard.
    pub fn info(&self, session: SessionRef, now: u64) -> Option<SessionInfo> {
        let word = self.shared.record(session.0).state_word();
        if word & SESSION_STATE_MASK == 0 {
            return None;
        }
        let info = self.copy(session.0, word, now);
        // Ended, or another one, meanwhile: what was copied may be of both.
        let after = self.shared.record(session.0).state_word();
        (after & SESSION_STATE_MASK != 0 && (after ^ word) >> SESSION_START_SHIFT == 0).then_some(info)
    }

    /// Visits the live sessions in the next `budget` lines. Returns where to go on, None at the end.
    pub(super) fn walk(&self, from: Cursor, budget: u32, visit: &mut dyn FnMut(LineNo)) -> Option<Cursor> {
        let lines = &self.shared.lines;
        let mut at = from.0;
        for _ in 0..budget.max(1) {
            if at >= lines.limit() {
                return None;
            }
            match lines.kind(at / SEGMENT_LINES).load(Acquire) {
                SESSION_SEGMENT_V4 => {
                    if lines.at(LineNo(at)).cell(STATE).load(Acquire) & SESSION_STATE_MASK != 0 {
                        visit(LineNo(at));
                    }
                    at += 1;
                }
                SESSION_SEGMENT_V6 => {
                    at &= !1;
                    if lines.at(LineNo(at)).cell(STATE).load(Acquire) & SESSION_STATE_MASK != 0 {
                        visit(LineNo(at));
                    }
                    at += 2;
                }
                _ => at = (at / SEGMENT_LINES + 1) * SEGMENT_LINES,
            }
        }
        Some(Cursor(at))
    }

    /// Lists sessions from `from` on: looks at no more than `budget` lines. Returns where to go on, None at the end. A session that
    /// lives all the time is seen once; those that begin or end meanwhile may be missed.
    pub fn list(
        &self,
        from: Cursor,
        budget: u32,
        filter: &Filter,
        now: u64,
        out: &mut dyn FnMut(SessionRef, &SessionInfo),
    ) -> Option<Cursor> {
        let sessions = self.sessions();
        let _guard = sessions.enter();
        self.walk(from, budget, &mut |at| {
            if let Some(info) = self.info(SessionRef(at), now) {
                if filter.matches(&info) {
                    out(SessionRef(at), &info);
                }
            }
        })
    }

    /// Ends the sessions for which `which` has a reason, of at most `budget` lines looked at from `from` on. Returns where to go on.
    pub fn remove_where(
        &self,
        from: Cursor,
        budget: u32,
        now: u64,
        which: &mut dyn FnMut(&SessionInfo) -> Option<EndReason>,
        ended: EndSink,
    ) -> Option<Cursor> {
        let sessions = self.sessions();
        let _guard = sessions.enter();
        self.walk(from, budget, &mut |at| {
            if let Some(info) = self.info(SessionRef(at), now) {
                if let Some(reason) = which(&info) {
                    let same = |word: u64| {
                        let record = self.shared.record(at);
                        record.inner() == info.inner && record.outer() == info.outer && word & SESSION_STATE_MASK != 0
                    };
                    self.end(at, reason, now, same, ended);
                }
            }
        })
    }
}
