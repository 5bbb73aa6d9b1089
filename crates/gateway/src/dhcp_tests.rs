// SPDX-License-Identifier: Apache-2.0

use super::*;

const MAC: u64 = 0x02_0000_0000_05;
const ADDRESS: u32 = 0x0a00_0005;
const LEASE: Lease<u32> = Lease { address: ADDRESS, bits: 24, gateway: 0x0a00_0001, mtu: 1450 };

/// A message of a client with these options.
fn message(client: u32, flags: u16, options: &[&[u8]]) -> Vec<u8> {
    let mut b = vec![0; FIXED];
    b[..4].copy_from_slice(&[1, 1, 6, 0]);
    be::set_u32(&mut b, 4, 0x1234_5678);
    be::set_u16(&mut b, 10, flags);
    be::set_u32(&mut b, 12, client);
    b[28..34].copy_from_slice(&MAC.to_be_bytes()[2..]);
    be::set_u32(&mut b, 236, COOKIE);
    b.extend(options.concat());
    b.push(option::END);
    b
}

fn answer_of(client: u32, options: &[&[u8]]) -> Option<u8> {
    Message::read(&message(client, 0, options)).unwrap().answer(&LEASE)
}

#[test]
fn each_question_has_its_answer() {
    let (discover, request, inform): (&[u8], &[u8], &[u8]) = (&[53, 1, 1], &[53, 1, 3], &[53, 1, 8]);
    let (right, wrong): (&[u8], &[u8]) = (&[50, 4, 10, 0, 0, 5], &[50, 4, 10, 0, 0, 6]);
    let (us, other): (&[u8], &[u8]) = (&[54, 4, 10, 0, 0, 1], &[54, 4, 10, 0, 0, 2]);
    assert_eq!(answer_of(0, &[discover]), Some(kind::OFFER));
    assert_eq!(answer_of(0, &[discover, wrong]), Some(kind::OFFER), "what it would like is no matter");
    assert_eq!(answer_of(0, &[request, right, us]), Some(kind::ACK));
    assert_eq!(answer_of(0, &[request, right]), Some(kind::ACK), "after a reboot");
    assert_eq!(answer_of(ADDRESS, &[request]), Some(kind::ACK), "renewal");
    assert_eq!(answer_of(0, &[request, wrong]), Some(kind::NAK));
    assert_eq!(answer_of(ADDRESS + 1, &[request]), Some(kind::NAK));
    assert_eq!(answer_of(0, &[request, right, other]), None, "it has chosen another server");
    assert_eq!(answer_of(ADDRESS, &[inform]), Some(kind::ACK));
    assert_eq!(answer_of(ADDRESS + 1, &[inform]), None);
    for silent in [2, 4, 5, 6, 7, 9] {
        assert_eq!(answer_of(ADDRESS, &[&[53, 1, silent]]), None, "{silent}");
    }
}

#[test]
fn an_answer_says_what_the_lease_says() {
    let wanted = message(0, 0, &[&[53, 1, 3], &[61, 3, 7, 8, 9], &[50, 4, 10, 0, 0, 5]]);
    let (dst, mac, said) = Message::read(&wanted).unwrap().reply(&LEASE, kind::ACK);
    assert_eq!((dst, mac), (ADDRESS, Mac(MAC)));
    assert_eq!(
        (&said[..4], be::u32(&said, 4), be::u32(&said, 12), be::u32(&said, 16)),
        (&[2, 1, 6, 0][..], 0x1234_5678, 0, ADDRESS)
    );
    assert_eq!(be::mac(&said, 28), MAC);
    let options = [
        &[53, 1, 5][..],
        &[54, 4, 10, 0, 0, 1],
        &[51, 4, 0, 1, 0x51, 0x80],
        &[1, 4, 255, 255, 255, 0],
        &[3, 4, 10, 0, 0, 1],
        &[26, 2, 0x05, 0xaa],
        &[61, 3, 7, 8, 9],
        &[255],
    ];
    assert!(said[FIXED..].starts_with(&options.concat()), "{:?}", &said[FIXED..]);
    assert_eq!(said.len(), LEAST);
    // A refusal gives nothing, and goes to everybody, for the client has no address.
    let (dst, mac, said) = Message::read(&wanted).unwrap().reply(&LEASE, kind::NAK);
    assert_eq!((dst, mac, be::u32(&said, 16)), (u32::MAX, Mac::BROADCAST, 0));
    assert!(said[FIXED..].starts_with(&[53, 1, 6, 54, 4, 10, 0, 0, 1, 61, 3, 7, 8, 9, 255]));
    // Who can take no unicast yet says so; who renews is answered where it is.
    let to = |client, flags| {
        let m = message(client, flags, &[&[53, 1, 3]]);
        let (dst, mac, _) = Message::read(&m).unwrap().reply(&LEASE, kind::ACK);
        (dst, mac)
    };
    assert_eq!((to(0, 0x8000), to(ADDRESS, 0x8000)), ((u32::MAX, Mac::BROADCAST), (ADDRESS, Mac(MAC))));
    // Who only asks what else there is gets no lease.
    let inform = message(ADDRESS, 0, &[&[53, 1, 8]]);
    let (_, _, said) = Message::read(&inform).unwrap().reply(&LEASE, kind::ACK);
    assert_eq!(be::u32(&said, 16), 0);
    assert!(said[FIXED..].starts_with(&[53, 1, 5, 54, 4, 10, 0, 0, 1, 1, 4, 255, 255, 255, 0]));
}

#[test]
fn prefixes_of_any_length_have_a_mask() {
    let wanted = message(0, 0, &[&[53, 1, 1]]);
    let mask = |bits| {
        let said = Message::read(&wanted).unwrap().reply(&Lease { bits, ..LEASE }, kind::OFFER).2;
        be::u32(&said, FIXED + 3 + 6 + 6 + 2)
    };
    assert_eq!([0, 1, 23, 32].map(mask), [0, 0x8000_0000, 0xffff_fe00, 0xffff_ffff]);
}

#[test]
fn what_is_no_message_of_a_client_is_refused() {
    let good = message(0, 0, &[&[53, 1, 1]]);
    assert!(Message::read(&good).is_some());
    for at in [0, 1, 2, 24, 236] {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        assert_eq!(Message::read(&bad), None, "{at}");
    }
    let with = |options: &[u8]| [&good[..FIXED], options].concat();
    for bad in [
        &[][..],
        &[53],
        &[53, 1],
        &[53, 1, 1],
        &[53, 2, 1, 1, 255],
        &[50, 3, 1, 2, 3, 53, 1, 1, 255],
        &[255],
        &[53, 9, 1, 255],
    ] {
        assert_eq!(Message::read(&with(bad)), None, "{bad:?}");
    }
    let padded = with(&[0, 0, 53, 1, 1, 0, 255, 9]);
    assert!(Message::read(&padded).is_some());
    (0..good.len()).for_each(|len| assert_eq!(Message::read(&good[..len]), None, "{len}"));
}
