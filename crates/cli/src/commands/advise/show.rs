//! Prints the table, the best first, and the reasons.

use bifold_vat::advise::{Advice, Forecast, Machine, Workload};

use super::{AdviseArgs, describe};
use crate::{
    failure::Result,
    output::{Output, Tone, bytes, count, counted},
};

pub fn show(advice: &Advice, machine: &Machine<'_>, args: &AdviseArgs, out: &mut Output) -> Result<()> {
    out.line(format!("{}  {}", out.paint(Tone::Strong, "workload"), workload(advice.workload())))?;
    let device = args.device.as_ref().map_or("not counted".to_owned(), |path| path.display().to_string());
    out.line(format!(
        "{}   {}, memory limit {}, page cache {}, device {device}\n",
        out.paint(Tone::Strong, "machine"),
        counted(machine.processors.into(), "processor", "processors"),
        bytes(machine.memory_limit as u64),
        bytes(machine.page_cache as u64)
    ))?;
    let head = format!(
        "{:<8} {:<40} {:>10} {:>7} {:>7} {:>6}  {:<15} {:>9}",
        "", "", "ops/s", "write", "read", "space", "limited by", "memory"
    );
    out.line(out.paint(Tone::Dim, &head))?;
    for (at, forecast) in advice.forecasts().iter().enumerate() {
        let line = row(forecast, advice);
        let tone = match at {
            0 => Tone::Good,
            _ if !forecast.within_space => Tone::Dim,
            _ => {
                out.line(line)?;
                continue;
            }
        };
        out.line(out.paint(tone, &line))?;
    }
    out.line(out.paint(
        Tone::Dim,
        &format!(
            "\nops/s: of the mix, by one thread; write, read, space: bytes for each byte of the program; \
            candidates that need more space than {} come last",
            machine.space
        ),
    ))?;
    out.line("")?;
    wrap(&advice.why(), 110).iter().try_for_each(|line| out.line(line))?;
    if let Some(path) = &args.apply {
        out.line(format!("\nwrote {}, for --options or Options::from_toml", path.display()))?;
    }
    Ok(())
}

fn row(forecast: &Forecast, advice: &Advice) -> String {
    let candidate = &forecast.candidate;
    format!(
        "{:<8} {:<40} {:>10} {:>7.2} {:>7.2} {:>6.2}  {:<15} {:>9}",
        candidate.placement.name(),
        describe(candidate, advice),
        count(forecast.operations_per_second as u64),
        forecast.write_amplification,
        forecast.read_amplification,
        forecast.space_amplification,
        forecast.bottleneck.name(),
        bytes(forecast.memory_bytes as u64)
    )
}

fn workload(workload: &Workload) -> String {
    let o = &workload.operations;
    let shares = [(o.insert, "insert"), (o.update, "update"), (o.delete, "delete"), (o.read, "read"), (o.scan, "scan")];
    let shares: Vec<String> = shares
        .iter()
        .filter(|(share, _)| *share > 0.0)
        .map(|(share, name)| format!("{:.0} % {name}", share * 100.0))
        .collect();
    let values = match &workload.values[..] {
        [one] => bytes(one.bytes as u64),
        several => {
            let least = several.iter().map(|v| v.bytes as u64).min().unwrap_or(0);
            let most = several.iter().map(|v| v.bytes as u64).max().unwrap_or(0);
            format!("{} to {}, {} on average", bytes(least), bytes(most), bytes(workload.value_bytes() as u64))
        }
    };
    format!(
        "{} of {}, values of {values}, {} in total; {}",
        counted(workload.keys as u64, "key", "keys"),
        bytes(workload.key_bytes as u64),
        bytes(workload.data_bytes() as u64),
        shares.join(", ")
    )
}

/// Breaks a text into lines of at most this many characters.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line =
            lines.last_mut().filter(|line| line.is_empty() || line.chars().count() + 1 + word.chars().count() <= width);
        match line {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => *line += &format!(" {word}"),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}
