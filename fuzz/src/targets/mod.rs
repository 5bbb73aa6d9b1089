// SPDX-License-Identifier: Apache-2.0
//! The targets, one parser of outside bytes each.

mod agents;
mod captures;
mod chains;
mod documents;
mod flows;
mod frames;
mod messages;
mod profiles;
mod requests;
mod rules;
mod state;
mod switches;
mod views;

/// A fuzz target.
pub trait Target {
    /// Its name, and that of its corpus directory.
    fn name(&self) -> &'static str;
    /// Takes one input; panics if that brings a fault to light. The result tells kinds of outcome apart.
    fn run(&mut self, input: &[u8]) -> u64;
    /// Inputs to begin with, besides the corpus.
    fn seeds(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }
    /// Words of the language, if it has any.
    fn words(&self) -> &'static [&'static str] {
        &[]
    }
}

/// All targets.
pub fn all() -> Vec<Box<dyn Target>> {
    vec![
        Box::new(views::Views),
        Box::new(frames::Frames::new()),
        Box::new(frames::Damaged::new()),
        Box::new(documents::Yaml),
        Box::new(documents::Ndjson),
        Box::new(documents::Snapshot),
        Box::new(documents::Case),
        Box::new(documents::Description),
        Box::new(flows::Flows),
        Box::new(flows::Packets),
        Box::new(flows::Traces),
        Box::new(switches::Switches::new()),
        Box::new(captures::Capture),
        Box::new(messages::Netlink),
        Box::new(messages::Event),
        Box::new(messages::Dhcp),
        Box::new(messages::Dhcp6),
        Box::new(profiles::Profile),
        Box::new(agents::Agents),
        Box::new(rules::Rules),
        Box::new(requests::Requests),
        Box::new(state::Journal),
        Box::new(state::State::new()),
        Box::new(chains::Chains::new()),
    ]
}

/// A number for a text without its digits and quoted parts: which sentence it is, not about what.
fn sentence(text: &str) -> u64 {
    let plain: String = text.chars().filter(|c| !c.is_ascii_digit()).take(60).collect();
    crate::pool::hash(plain.split(['`', '"', '\'']).step_by(2).collect::<String>().as_bytes())
}

/// The text files of a directory of the repository.
fn repository_files(dir: &str, ending: &str) -> Vec<Vec<u8>> {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(dir);
    let mut files: Vec<_> = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.retain(|f| f.to_string_lossy().ends_with(ending));
    files.sort();
    files.iter().filter_map(|f| std::fs::read(f).ok()).collect()
}
