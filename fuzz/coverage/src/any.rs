// SPDX-License-Identifier: Apache-2.0
//! The fuzz target that `TUNNY_FUZZ_TARGET` names, driven by libFuzzer: coverage of the instrumented code says which inputs are worth mutating further. With
//! `list` for a name it prints all names; with `TUNNY_FUZZ_SEEDS` it writes what the target begins with to that folder. Both end it.
#![no_main]

use std::cell::RefCell;

thread_local! {
    static TARGET: RefCell<Box<dyn fuzz::Target>> = RefCell::new(chosen());
}

fn chosen() -> Box<dyn fuzz::Target> {
    let name = std::env::var("TUNNY_FUZZ_TARGET").unwrap_or_default();
    let all = || fuzz::targets();
    let names: Vec<_> = all().iter().map(|t| t.name()).collect();
    if name == "list" {
        println!("{}", names.join("\n"));
        std::process::exit(0);
    }
    let found = all().into_iter().find(|t| t.name() == name);
    let target = found.unwrap_or_else(|| panic!("TUNNY_FUZZ_TARGET names no target; there are {}", names.join(", ")));
    if let Some(folder) = std::env::var_os("TUNNY_FUZZ_SEEDS") {
        let written = fuzz::write_seeds(target.as_ref(), folder.as_ref());
        std::process::exit(i32::from(written.is_err()));
    }
    target
}

libfuzzer_sys::fuzz_target!(init: TARGET.with(|_| ()), |input: &[u8]| {
    TARGET.with(|target| {
        target.borrow_mut().run(input);
    });
});
