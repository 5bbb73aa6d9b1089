// SPDX-License-Identifier: Apache-2.0
use super::*;

fn circuit(tags: u8) -> Circuit {
    let port = EdgePort {
        number: 3,
        tags,
        mtu: 1500,
        tpids: [0x88a8, 0x8100],
        ifindex: IfIndex(7),
        changes: false,
        elsewhere: false,
    };
    Circuit { port, tags: [[0, 0], [100, 0], [100, 200]][usize::from(tags)], class: 0 }
}

#[test]
fn tags_stand_behind_the_addresses_and_an_mtu_has_room_for_one() {
    let frame: Vec<u8> = (0..20).collect();
    let tagged = |n: u8| {
        let mut buffer = [&[0xee; 10][..], &frame].concat();
        let tags = Tags::of(&circuit(n));
        let start = tags.encapsulate(&mut buffer, 10).unwrap();
        assert_eq!((10 - start, tags.len()), (4 * usize::from(n), 4 * usize::from(n)));
        buffer[start..].to_vec()
    };
    let with = |tags: &[u8]| [&frame[..12], tags, &frame[12..]].concat();
    assert_eq!(tagged(0), frame);
    assert_eq!(tagged(1), with(&[0x88, 0xa8, 0, 100]));
    assert_eq!(tagged(2), with(&[0x88, 0xa8, 0, 100, 0x81, 0, 0, 200]));
    assert_eq!([0, 1, 2].map(|n| Tags::of(&circuit(n)).counted()), [0, 0, 4]);
    // No room in front, or less than two addresses.
    assert_eq!(Tags::of(&circuit(2)).encapsulate(&mut [0; 40], 7), None);
    assert_eq!(Tags::of(&circuit(1)).encapsulate(&mut [0; 15], 4), None);
}

#[test]
fn a_frame_of_full_size_fits_with_one_tag_and_not_with_two() {
    let fits = |n: u8, ip: usize| path(&circuit(n), 1).fits(ethernet::HEADER_LEN + ip);
    assert_eq!([0, 1, 2].map(|n| fits(n, 1500)), [true, true, false]);
    assert_eq!([0, 1, 2].map(|n| fits(n, 1501)), [false; 3]);
    assert!(fits(2, 1496) && !fits(2, 1497));
}

#[test]
fn what_is_wrong_with_tags_is_told_in_order() {
    use DropReason::*;
    let frame = |words: &[u16]| {
        let tags: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
        [&[2; 12][..], &tags, &[0; 40]].concat()
    };
    let read = |n: u8, data: &[u8]| {
        let mut vids = [0; 2];
        tags(&circuit(n).port, data, &mut vids).map(|()| vids).map_err(|why| (why, vids))
    };
    let of = |n: u8, words: &[u16]| read(n, &frame(words)).map_err(|(why, _)| why);
    assert_eq!(
        of(2, &[0x88a8, 0xe064, 0x8100, 0x10c8, 0x0800]),
        Ok([100, 200]),
        "priority and DEI are no part of an id"
    );
    assert_eq!(of(1, &[0x88a8, 100, 0x0800]), Ok([100, 0]));
    assert_eq!(of(0, &[0x0800]), Ok([0, 0]));
    assert_eq!([of(2, &[0x0800]), of(1, &[0x86dd])], [Err(EdgeUntagged); 2]);
    assert_eq!(of(2, &[0x88a8, 100, 0x0800]), Err(EdgeOneTag));
    assert_eq!([of(2, &[0x8100, 100, 0x0800]), of(2, &[0x88a8, 100, 0x9100, 1, 0x0800])], [Err(EdgeTpid); 2]);
    assert_eq!([of(1, &[0x88a8, 0xe000, 0x0800]), of(2, &[0x88a8, 100, 0x8100, 0, 0x0800])], [Err(EdgePriorityTag); 2]);
    assert_eq!(
        [of(1, &[0x88a8, 100, 0x8100, 1, 0x0800]), of(2, &[0x88a8, 100, 0x8100, 1, 0x8100, 1])],
        [Err(EdgeManyTags); 2]
    );
    assert_eq!([of(0, &[0x8100, 0, 0x0800]), of(0, &[0x88a8, 1, 0x0800])], [Err(EdgeTagged); 2]);
    // Cut off behind the outer tag, and in front of the EtherType that follows the inner one.
    // Whose a frame is that is wrong behind its outer tag is known.
    assert_eq!(read(2, &frame(&[0x88a8, 100, 0x0800])), Err((EdgeOneTag, [100, 0])));
    let cut = |n: usize| read(2, &frame(&[0x88a8, 100, 0x8100, 200, 0x0800])[..n]).map_err(|(why, _)| why);
    assert_eq!([14, 17, 18, 21].map(cut), [Err(OuterTruncated); 4]);
    assert_eq!(cut(22), Ok([100, 200]));
}
