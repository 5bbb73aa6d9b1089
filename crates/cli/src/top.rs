// SPDX-License-Identifier: Apache-2.0
//! `tunny top`: rates, drops, load, heaviest flows, water levels.

use crate::output::{show, si, table};
use crate::Global;
use node::types::Top;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Block, Paragraph};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// Watch rates, drops, load, heaviest flows and water levels.
///
/// Leave with q. Flows are estimated from sampled packets; sampling runs only while somebody watches.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one reading and leave.
    #[arg(long)]
    once: bool,
    /// Seconds between readings, 60 at most.
    #[arg(long, default_value_t = 1.0, value_name = "S", value_parser = crate::input::seconds)]
    interval: f64,
}

/// Runs the command.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.node_client()?;
    let path = format!("/v1/top?ms={}", (args.interval.clamp(0.05, 60.0) * 1000.0) as u64);
    if args.once || !global.output.is_table() {
        show(global.output, &client.get::<Top>(&path)?, text)?;
        return Ok(ExitCode::SUCCESS);
    }
    anyhow::ensure!(std::io::stdout().is_terminal(), "top needs a terminal: use --once, or -o json");
    // The first reading before the screen is taken, so that "no node" is said in plain text.
    let mut top: Top = client.get(&path)?;
    let mut terminal = ratatui::init();
    let result = loop {
        if let Err(e) = terminal.draw(|frame| draw(frame, &top)) {
            break Err(e.into());
        }
        match quit() {
            Ok(true) => break Ok(ExitCode::SUCCESS),
            Ok(false) => {}
            Err(e) => break Err(e.into()),
        }
        match client.get(&path) {
            Ok(next) => top = next,
            Err(e) => break Err(e.into()),
        }
    };
    ratatui::restore();
    result
}

/// Whether q, Escape or Ctrl-C is among the keys that wait.
fn quit() -> std::io::Result<bool> {
    while event::poll(Duration::ZERO)? {
        if let Event::Key(key) = event::read()? {
            let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn headline(t: &Top) -> String {
    format!(
        "engine {}   in {}pps {}bit/s   forwarded {}pps   dropped {}pps   punted {}pps   fast path {:.2} %   flow cache {:.2} % ({}new/s, {}evicted/s)   {}",
        model::plain(&t.engine),
        si(t.rx_pps),
        si(t.rx_bps),
        si(t.forwarded_pps),
        si(t.dropped_pps),
        si(t.punted_pps),
        t.fast_share,
        t.flow_cache.hit_percent,
        si(t.flow_cache.fills),
        si(t.flow_cache.evictions),
        if t.balanced { "balanced" } else { "NOT BALANCED" }
    )
}

fn reasons(t: &Top) -> String {
    let row = |kind: &str, (reason, rate): (&String, &f64)| vec![kind.to_string(), reason.clone(), si(*rate)];
    table(
        &["what", "reason", "per second"],
        t.drops.iter().map(|r| row("drop", r)).chain(t.punts.iter().map(|r| row("punt", r))),
    )
}

fn tenants(t: &Top) -> String {
    table(
        &["vni", "vpc", "pps", "bit/s", "drops/s"],
        t.tenants.iter().map(|t| vec![t.vni.to_string(), t.vpc.clone(), si(t.pps), si(t.bps), si(t.drops)]),
    )
}

fn cores(t: &Top) -> String {
    table(
        &["cpu", "busy", "softirq", "pps"],
        t.cores
            .iter()
            .map(|c| vec![c.cpu.to_string(), format!("{:.1} %", c.busy), format!("{:.1} %", c.softirq), si(c.pps)]),
    )
}

fn flows(t: &Top) -> String {
    table(
        &["vni", "source", "destination", "proto", "pps", "bit/s"],
        t.flows.iter().map(|f| {
            vec![f.vni.to_string(), f.source.clone(), f.destination.clone(), f.protocol.clone(), si(f.pps), si(f.bps)]
        }),
    )
}

fn text(t: &Top) -> String {
    format!(
        "{}\n\nDrops and punts\n{}\nBusiest VPCs\n{}\nLoad per core\n{}\nHeaviest flows (from {} samples in {:.1} s)\n{}\nWater levels\n{}",
        headline(t),
        reasons(t),
        tenants(t),
        cores(t),
        t.samples,
        t.seconds,
        flows(t),
        crate::get::levels_text(&t.levels)
    )
}

fn draw(frame: &mut ratatui::Frame, t: &Top) {
    let [head, upper, lower, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Fill(1), Constraint::Length(1)])
            .areas(frame.area());
    let [upper_left, upper_right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(upper);
    let [lower_left, lower_right] = Layout::horizontal([Constraint::Fill(3), Constraint::Fill(2)]).areas(lower);
    let [lower_right_top, lower_right_bottom] =
        Layout::vertical([Constraint::Fill(1), Constraint::Fill(2)]).areas(lower_right);
    let color = if t.balanced { Color::Green } else { Color::Red };
    frame.render_widget(Paragraph::new(headline(t)).style(Style::new().fg(color).add_modifier(Modifier::BOLD)), head);
    for (area, title, body) in [
        (upper_left, "Busiest VPCs", tenants(t)),
        (upper_right, "Drops and punts", reasons(t)),
        (lower_left, "Heaviest flows", flows(t)),
        (lower_right_top, "Load per core", cores(t)),
        (lower_right_bottom, "Water levels", crate::get::levels_text(&t.levels)),
    ] {
        frame.render_widget(Paragraph::new(body).block(Block::bordered().title(title)), area);
    }
    frame.render_widget(Paragraph::new("q leaves"), foot);
}

#[cfg(test)]
mod tests {
    use super::*;
    use node::types::{Flow, Level, TenantRate};

    /// Names that nothing stops from holding what a terminal obeys.
    #[test]
    fn no_name_steers_the_terminal() {
        let bad = "a\u{1b}[2J\u{1b}]0;owned\u{7}\r\nb\u{202e}c\u{9b}31m";
        let name = || bad.to_string();
        let t = Top {
            engine: name(),
            drops: [(name(), 1.0)].into(),
            punts: [(name(), 1.0)].into(),
            tenants: vec![TenantRate { vpc: name(), ..Default::default() }],
            flows: vec![Flow { source: name(), destination: name(), protocol: name(), ..Default::default() }],
            levels: vec![Level { name: name(), ..Default::default() }],
            ..Default::default()
        };
        let harmless = |text: &str| text.chars().all(|c| !c.is_control() && !('\u{202a}'..='\u{202e}').contains(&c));
        let once = model::plain_lines(&text(&t)).into_owned();
        assert!(once.lines().all(harmless), "{once:?}");
        assert_eq!(once.matches("owned").count(), 8);
        let mut terminal = ratatui::Terminal::new(ratatui::backend::TestBackend::new(160, 60)).unwrap();
        terminal.draw(|frame| draw(frame, &t)).unwrap();
        let cells = terminal.backend().buffer().content.iter();
        assert!(cells.clone().all(|cell| harmless(cell.symbol())));
        assert!(cells.map(|cell| cell.symbol()).collect::<String>().contains("owned"));
    }
}
