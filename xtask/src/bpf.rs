// SPDX-License-Identifier: Apache-2.0
//! `bpf/` in layers: only `platform.h` and what it consists of (`platform_*.h`) calls helpers of the kernel, and no include runs upwards.

/// From below: what stands in a folder or file may include what is of a lower layer, or of its own folder.
const LAYERS: &[&str] =
    &["include/", "platform", "tables/", "states/", "packet.h", "addresses.h", "connection/", "framing/", "stages/"];

/// Adds what is wrong with a file of `bpf/`.
pub fn check(name: &str, text: &str, out: &mut Vec<String>) {
    let Some(file) = name.strip_prefix("bpf/") else { return };
    let own = layer(file);
    for (i, line) in text.lines().enumerate() {
        if let Some(included) = line.strip_prefix("#include \"").and_then(|rest| rest.split('"').next()) {
            let path = resolve(file, included);
            if layer(&path) > own || layer(&path) == own && folder(&path) != folder(file) {
                out.push(format!("{name}:{}: includes bpf/{path}, which is above it: see bpf/platform.h", i + 1));
            }
        }
        if !file.starts_with("platform") && !file.starts_with("include/") && calls_helper(line) {
            out.push(format!("{name}:{}: calls a helper of the kernel: only bpf/platform*.h do", i + 1));
        }
    }
}

/// Programs are above all.
fn layer(file: &str) -> usize {
    LAYERS.iter().position(|l| file.starts_with(l)).unwrap_or(LAYERS.len())
}

fn folder(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// The path below `bpf/` of what `file` includes.
fn resolve(file: &str, included: &str) -> String {
    let mut folders: Vec<&str> = folder(file).split('/').filter(|f| !f.is_empty()).collect();
    for part in included.split('/') {
        match part {
            ".." => drop(folders.pop()),
            part => folders.push(part),
        }
    }
    folders.join("/")
}

/// Whether a call of `bpf_…(` stands in a line.
fn calls_helper(line: &str) -> bool {
    line.match_indices("bpf_").any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let name = line[at..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(line.len() - at);
        !before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') && line[at + name..].starts_with('(')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, text: &str) -> usize {
        let mut out = Vec::new();
        check(name, text, &mut out);
        out.len()
    }

    #[test]
    fn an_include_that_runs_upwards_is_named() {
        assert_eq!(
            found("bpf/tables/a.h", "#include \"../stages/b.h\"\n#include \"b.h\"\n#include \"../platform.h\"\n"),
            1
        );
        assert_eq!(found("bpf/packet.h", "#include \"connection/b.h\"\n#include \"tables/b.h\"\n"), 1);
        assert_eq!(found("bpf/stages/a.h", "#include \"../framing/b.h\"\n#include \"../packet.h\"\n"), 0);
        assert_eq!(found("bpf/platform.h", "#include <linux/bpf.h>\n#include \"packet.h\"\n"), 1);
        assert_eq!(found("bpf/x.bpf.c", "#include \"stages/b.h\"\n#include \"packet.h\"\n"), 0);
        assert_eq!(found("crates/a/b.h", "#include \"../stages/b.h\"\n"), 0);
    }

    #[test]
    fn a_helper_that_is_called_is_named() {
        let text = "x = bpf_map_lookup_elem(&m, &k);\nstruct bpf_prog;\ntunny_bpf_x(1);\nbpf_redirect_map (m);\n";
        assert_eq!(found("bpf/stages/a.h", text), 1);
        assert_eq!((found("bpf/platform.h", text), found("bpf/platform_skb.h", text)), (0, 0));
    }
}
