// SPDX-License-Identifier: Apache-2.0
//! What the verifier allows a program, and how much of it is left: stack and instructions.
//!
//! Linux 6.1 allows the calls in progress 512 bytes of stack together, each rounded up to 32 bytes, and eight of them; a later kernel may
//! allow more, so a program that loads where it is developed may be refused where it runs. The compiled object is read here and summed
//! up as that verifier does it. Instructions have no such limit, but what the verifier has to walk has (a million), and that grows with them.
mod common;

use common::engine;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex, SymbolKind};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsRawFd, BorrowedFd};
use xdp::{Options, XdpEngine, OBJECT, SWITCH_OBJECT};

/// Bytes of stack that the calls in progress may have together (`MAX_BPF_STACK`), and how many there may be (`MAX_CALL_FRAMES`).
const STACK_MAX: u32 = 512;
const FRAMES_MAX: usize = 8;
/// Of these bytes, what is kept free: nothing. `tunny_tunnel` and `tunny_cached` are 8 bytes each above what would leave 32.
const STACK_SLACK: u32 = 0;
/// Instructions of a program with all functions that it calls. What customers send takes 7,000 of them, a copy of the path for each family;
/// the flow cache for what they send and get takes 1,600 as functions of its own, and VM ports 1,400.
static INSTRUCTIONS_MAX: [(&[u8], &str, usize); 4] = [
    (OBJECT, "tunny_gateway", 44_000),
    (OBJECT, "tunny_gather", 500),
    (SWITCH_OBJECT, "tunny_switch", 42_000),
    (SWITCH_OBJECT, "tunny_give_back", 100),
];
/// Instructions that the verifier walks until it accepts the program: a million is the kernel's limit.
const VERIFIED_MAX: u32 = 600_000;

const INSTRUCTION_BYTES: usize = 8;
/// The frame pointer.
const R10: u8 = 10;

/// One instruction of eight bytes.
struct Instruction {
    code: u8,
    to: u8,
    from: u8,
    offset: i32,
    immediate: i32,
}

impl Instruction {
    fn read(bytes: &[u8]) -> Instruction {
        Instruction {
            code: bytes[0],
            to: bytes[1] & 15,
            from: bytes[1] >> 4,
            offset: i16::from_le_bytes([bytes[2], bytes[3]]).into(),
            immediate: i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        }
    }
}

/// A function: what it takes of the stack, and whom it calls.
#[derive(Default)]
struct Function {
    stack: u32,
    instructions: usize,
    calls: BTreeSet<String>,
}

/// Functions by name.
struct Program(BTreeMap<String, Function>);

/// Where a function begins.
type Place = (SectionIndex, u64);

impl Program {
    fn read(elf: &[u8]) -> Program {
        let file = ElfFile64::<object::Endianness>::parse(elf).unwrap();
        let functions: Vec<_> = file.symbols().filter(|s| s.kind() == SymbolKind::Text && s.size() > 0).collect();
        let names: HashMap<Place, String> = functions
            .iter()
            .map(|s| ((s.section_index().unwrap(), s.address()), s.name().unwrap().to_string()))
            .collect();
        let read = functions.iter().map(|symbol| {
            let section = file.section_by_index(symbol.section_index().unwrap()).unwrap();
            // What an instruction refers to: a place, to which a call adds its immediate.
            let targets: HashMap<u64, Place> = section
                .relocations()
                .filter_map(|(at, relocation)| match relocation.target() {
                    RelocationTarget::Symbol(index) => {
                        let target = file.symbol_by_index(index).unwrap();
                        Some((at, (target.section_index()?, target.address())))
                    }
                    _ => None,
                })
                .collect();
            let (first, bytes) = (symbol.address() as usize, symbol.size() as usize);
            let code = &section.data().unwrap()[first..first + bytes];
            let called = |at: u64, immediate: i32| {
                let behind =
                    |from: u64| from.wrapping_add_signed((i64::from(immediate) + 1) * INSTRUCTION_BYTES as i64);
                match targets.get(&at) {
                    Some((section, address)) => names.get(&(*section, behind(*address))),
                    None => names.get(&(section.index(), behind(at))),
                }
            };
            (symbol.name().unwrap().to_string(), Function::read(code, first as u64, called))
        });
        Program(read.collect())
    }

    /// The most that a function and whom it calls take of the stack, with those that take it.
    fn deepest(&self, name: &str) -> (u32, Vec<String>) {
        let function = &self.0[name];
        let below = function.calls.iter().map(|name| self.deepest(name)).max_by_key(|(stack, _)| *stack);
        let (stack, mut chain) = below.unwrap_or_default();
        chain.insert(0, format!("{name} {}", function.stack));
        (stack + function.stack.max(1).next_multiple_of(32), chain)
    }

    /// The most calls that can be in progress.
    fn frames(&self, name: &str) -> usize {
        1 + self.0[name].calls.iter().map(|name| self.frames(name)).max().unwrap_or(0)
    }

    fn add_reachable<'a>(&'a self, name: &'a str, found: &mut BTreeSet<&'a str>) {
        if found.insert(name) {
            self.0[name].calls.iter().for_each(|name| self.add_reachable(name, found));
        }
    }

    fn instructions(&self, name: &str) -> usize {
        let mut found = BTreeSet::new();
        self.add_reachable(name, &mut found);
        found.iter().map(|name| self.0[*name].instructions).sum()
    }
}

impl Function {
    /// Follows pointers into the stack through the registers of straight code: what is reached by one from another function, or after a
    /// branch, was taken from the frame pointer before, and its lowest byte is counted there.
    fn read<'a>(code: &[u8], first: u64, called: impl Fn(u64, i32) -> Option<&'a String>) -> Function {
        let mut function = Function { instructions: code.len() / INSTRUCTION_BYTES, ..Function::default() };
        let mut pointers = HashMap::from([(R10, 0)]);
        let mut lowest = 0;
        let mut wide = false;
        for (n, bytes) in code.chunks_exact(INSTRUCTION_BYTES).enumerate() {
            let (i, at) = (Instruction::read(bytes), first + (n * INSTRUCTION_BYTES) as u64);
            if std::mem::take(&mut wide) {
                continue;
            }
            match i.code {
                // r += constant, r = r.
                0x07 if pointers.contains_key(&i.to) => {
                    let pointer = pointers.get_mut(&i.to).expect("it is there");
                    *pointer += i.immediate;
                    lowest = lowest.min(*pointer);
                }
                0xbf if pointers.contains_key(&i.from) => {
                    pointers.insert(i.to, pointers[&i.from]);
                }
                // A constant of 64 bits takes two.
                0x18 => {
                    wide = true;
                    pointers.remove(&i.to);
                    // A function as an argument, which a helper calls.
                    if i.from == 4 {
                        function.calls.insert(called(at, i.immediate).expect("a function that is called back").clone());
                    }
                }
                0x85 => {
                    pointers.retain(|r, _| *r > 5);
                    // Another function of the program, not a helper of the kernel.
                    if i.from == 1 {
                        function.calls.insert(called(at, i.immediate).expect("a function that is called").clone());
                    }
                }
                _ => {
                    // Loads have the pointer in `from`, stores in `to`.
                    let pointer = match i.code & 7 {
                        1 => pointers.get(&i.from),
                        2 | 3 => pointers.get(&i.to),
                        _ => None,
                    };
                    lowest = lowest.min(pointer.map_or(0, |p| p + i.offset));
                    if matches!(i.code & 7, 1 | 4 | 7) {
                        pointers.remove(&i.to);
                    }
                }
            }
        }
        function.stack = lowest.unsigned_abs();
        function
    }
}

#[test]
fn calls_and_their_stack_fit_what_linux_6_1_allows() {
    for (object, name, most) in INSTRUCTIONS_MAX {
        let program = Program::read(object);
        let ((stack, chain), frames) = (program.deepest(name), program.frames(name));
        let instructions = program.instructions(name);
        println!("{name}: {instructions} instructions (at most {most}), {stack} bytes of stack (at most {STACK_MAX}), {frames} calls: {}", chain.join(" > "));
        assert!(
            stack <= STACK_MAX - STACK_SLACK,
            "{name}: calls take {stack} bytes of stack, {STACK_MAX} are allowed and {STACK_SLACK} kept free: {}",
            chain.join(" > ")
        );
        assert!(frames <= FRAMES_MAX, "{name}: {frames} calls deep, {FRAMES_MAX} are allowed");
        assert!(instructions <= most, "{name}: {instructions} instructions; look at why before you raise {most}");
    }
}

#[test]
fn the_kernel_accepts_programs_well_below_its_limit() {
    if engine().is_none() {
        return;
    }
    for flow_lines in [0, 1000] {
        let engine = XdpEngine::open_or_create(&Options { flow_lines, ..Options::default() }).unwrap();
        accepted(engine.program(), &format!("a flow cache of {flow_lines} lines"));
    }
    let mut engine = XdpEngine::load().unwrap();
    accepted(engine.switch_program().unwrap(), "the tc program");
}

fn accepted(program: BorrowedFd, what: &str) {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_raw_fd())).unwrap();
    let verified = info.lines().find_map(|l| l.strip_prefix("verified_insns:")).unwrap();
    let verified: u32 = verified.trim().parse().unwrap();
    println!("{what}: the verifier walked {verified} instructions");
    assert!(
        verified <= VERIFIED_MAX,
        "the verifier walks {verified} instructions: look at why before you raise {VERIFIED_MAX}"
    );
}

/// `calls`: r10 - 8 is written, and a function called that writes at r10 - 40 through a copy of it.
#[test]
fn stack_is_summed_up_as_the_verifier_does() {
    let names = [((SectionIndex(1), 0), "a".to_string())];
    let called = |at: u64, immediate: i32| {
        assert_eq!((at, immediate), (16, 7));
        Some(&names[0].1)
    };
    // *(u64 *)(r10 - 8) = r1; nothing; call +7; r2 = r10; r2 += -40; r2 = 0; *(u64 *)(r2 + 8) = r1.
    let code: [u64; 7] = [
        0x0000_0000_fff8_1a7b,
        0x0000_0000_0000_11bf,
        0x0000_0007_0000_1085,
        0x0000_0000_0000_a2bf,
        0xffff_ffd8_0000_0207,
        0x0000_0000_0000_02b7,
        0x0000_0000_0008_127b,
    ];
    let bytes: Vec<u8> = code.iter().flat_map(|i| i.to_le_bytes()).collect();
    let read = Function::read(&bytes, 0, called);
    assert_eq!((read.stack, read.instructions, read.calls.len()), (40, 7, 1));
    let leaf = |stack| Function { stack, ..Function::default() };
    let program = Program(BTreeMap::from([("a".to_string(), leaf(0)), ("b".to_string(), read)]));
    assert_eq!(program.deepest("b"), (64 + 32, vec!["b 40".to_string(), "a 0".to_string()]));
    assert_eq!((program.frames("b"), program.instructions("b")), (2, 7));
}
