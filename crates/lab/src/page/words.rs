//! Counts, sizes, times and verdicts in words.

use super::finding::Finding;
use crate::{
    chart::numbers::number,
    choose::Distribution,
    experiment::{Arm, Verdict, check::Rule},
    record::{NotLoaded, Run},
};

/// A count with its noun: `1 run`, `2 runs`.
pub fn count(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// A list: `a, b and c`.
pub fn list(things: &[String]) -> String {
    match things {
        [] => String::new(),
        [one] => one.clone(),
        [before @ .., last] => format!("{} and {last}", before.join(", ")),
    }
}

/// A size.
pub fn bytes(bytes: u64) -> String {
    let (unit, power) = match bytes {
        0..0x400 => return format!("{bytes} bytes"),
        0x400..0x10_0000 => ("KiB", 10),
        0x10_0000..0x4000_0000 => ("MiB", 20),
        _ => ("GiB", 30),
    };
    let size = bytes as f64 / f64::from(1_u32 << power);
    if size.fract() == 0.0 { format!("{size} {unit}") } else { format!("{size:.1} {unit}") }
}

/// A duration.
pub fn duration(seconds: f64) -> String {
    // Negative times are none; the cast saturates.
    match seconds.round() as u64 {
        0..120 => format!("{} s", number(seconds.max(0.0))),
        seconds @ 120..7200 => format!("{} min", (seconds + 30) / 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// The day and the minute of a time that is given in seconds since 1970, in UTC.
pub fn date(seconds: u64) -> String {
    // Howard Hinnant, "chrono-compatible low-level date algorithms": years begin in March, so that a leap day is a
    // year's last. Nobody measures after the year 10 000.
    let seconds = seconds.min(253_402_300_799);
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute) = (seconds % 86_400 / 3600, seconds % 3600 / 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// How keys are chosen.
pub fn distribution(distribution: Distribution) -> String {
    match distribution {
        Distribution::Uniform => "all alike".to_owned(),
        Distribution::Zipf { theta } => format!("Zipf {theta}"),
        Distribution::Latest { theta } => format!("the newest most often, Zipf {theta}"),
        Distribution::Shifting => "nine of ten in a tenth that shifts".to_owned(),
    }
}

/// A rule.
pub fn rule(rule: Rule) -> String {
    match rule {
        Rule::Rises => "rises".to_owned(),
        Rule::Falls => "falls".to_owned(),
        _ => rule.to_string(),
    }
}

/// Our figure for a rule.
pub fn ours(rule: Rule, ours: Option<f64>) -> String {
    let Some(ours) = ours else { return "–".to_owned() };
    let change = match rule {
        Rule::Rises => ours,
        // Ours is the rise of the inverted curve.
        Rule::Falls => 1.0 / (1.0 + ours) - 1.0,
        _ => return number(ours),
    };
    match change * 100.0 {
        percent if !percent.is_finite() => "–".to_owned(),
        percent if percent > 0.0 => format!("rises by {} %", number(percent)),
        percent => format!("falls by {} %", number(-percent)),
    }
}

/// Whether a rule holds.
pub fn holds(holds: Option<bool>) -> &'static str {
    match holds {
        Some(true) => "yes",
        Some(false) => "no",
        None => "not measured",
    }
}

/// The sign of a verdict, for readers who see no colours.
pub fn sign(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reproduced => "✓",
        Verdict::Partly => "◐",
        Verdict::Not => "✗",
        Verdict::Open => "○",
    }
}

/// The number of an experiment's rules that hold, in a sentence.
pub fn rules_held(finding: &Finding<'_>) -> String {
    of_rules(finding.held(), finding.measured(), finding.outcomes.len())
}

fn of_rules(held: usize, measured: usize, all: usize) -> String {
    let rest = match all - measured {
        0 => String::new(),
        rest => format!(" {rest} {} not measured.", was(rest)),
    };
    match (held, measured, all) {
        (_, _, 0) => "No rule was written for it.".to_owned(),
        (_, 0, _) => "No figure of its rules has been measured.".to_owned(),
        (1, 1, 1) => "Its one rule holds.".to_owned(),
        (1, 1, all) => format!("1 of {all} rules was measured, and holds."),
        (0, 1, 1) => "Its one rule does not hold.".to_owned(),
        (0, 1, all) => format!("1 of {all} rules was measured, and does not hold."),
        (held, measured, all) if held == measured && measured < all => {
            format!("{measured} of {all} rules were measured, and hold.")
        }
        (held, measured, _) if held == measured => format!("All {measured} rules hold."),
        (1, measured, _) => format!("1 of {} that were measured holds.{rest}", count(measured, "rule")),
        (held, measured, _) => {
            format!("{held} of {measured} rules that were measured hold.{rest}")
        }
    }
}

/// The same for a table: `3 of 4, 2 not measured`.
pub fn held_of(finding: &Finding<'_>) -> String {
    let (held, measured) = (finding.held(), finding.measured());
    match finding.outcomes.len() - measured {
        0 => format!("{held} of {measured}"),
        rest => format!("{held} of {measured}, {rest} not measured"),
    }
}

/// How many experiments are complete, where these come first among all: a sentence and a space, or nothing if all are.
pub fn how_complete(complete: usize, all: usize) -> String {
    let others = if all - complete == 1 { "the last" } else { "the others" };
    match complete {
        complete if complete == all => String::new(),
        0 => "No experiment is complete: some runs of each have not been made yet. ".to_owned(),
        1 => format!("The first is complete; some runs of {others} have not been made yet. "),
        complete => format!("The first {complete} are complete; some runs of {others} have not been made yet. "),
    }
}

/// The stores that did not have all keys in time, in a sentence; `None` if there are none.
pub fn not_loaded(finding: &Finding<'_>) -> Option<String> {
    let described = |(arm, runs): (&Arm, &[&Run])| {
        let NotLoaded { keys, of, seconds } = runs.iter().find_map(|run| run.not_loaded)?;
        let percent = number(100.0 * keys as f64 / of as f64);
        Some(format!("{} ({percent} % of the keys after {})", arm.label(), duration(seconds)))
    };
    let arms: Vec<String> = finding.data.measured().filter_map(described).collect();
    (!arms.is_empty()).then(|| format!("Not loaded in time, so without figures (–): {}.", list(&arms)))
}

fn was(count: usize) -> &'static str {
    if count == 1 { "was" } else { "were" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, said) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_740_787_199, "2025-02-28 23:59 UTC"),
            (1_795_372_260, "2026-11-22 18:31 UTC"),
            (u64::MAX, "9999-12-31 23:59 UTC"),
        ] {
            assert_eq!(date(seconds), said);
        }
    }

    #[test]
    fn sizes_and_times_are_short() {
        for (size, said) in [(0, "0 bytes"), (1536, "1.5 KiB"), (64 << 20, "64 MiB"), (u64::MAX, "17179869184 GiB")] {
            assert_eq!(bytes(size), said);
        }
        for (seconds, said) in [(-1.0, "0 s"), (0.5, "0.500 s"), (150.0, "3 min"), (7260.0, "2 h 1 min")] {
            assert_eq!(duration(seconds), said);
        }
        assert_eq!((count(1, "run").as_str(), count(2, "run").as_str()), ("1 run", "2 runs"));
        assert_eq!(list(&["a".to_owned(), "b".to_owned(), "c".to_owned()]), "a, b and c");
    }

    #[test]
    fn rules_that_were_not_measured_are_counted() {
        for (held, measured, all, said) in [
            (0, 0, 0, "No rule was written for it."),
            (0, 0, 2, "No figure of its rules has been measured."),
            (1, 1, 1, "Its one rule holds."),
            (3, 3, 3, "All 3 rules hold."),
            (1, 1, 7, "1 of 7 rules was measured, and holds."),
            (2, 2, 7, "2 of 7 rules were measured, and hold."),
            (1, 2, 3, "1 of 2 rules that were measured holds. 1 was not measured."),
            (2, 5, 7, "2 of 5 rules that were measured hold. 2 were not measured."),
            (0, 1, 1, "Its one rule does not hold."),
            (0, 1, 7, "1 of 7 rules was measured, and does not hold."),
            (0, 2, 7, "0 of 2 rules that were measured hold. 5 were not measured."),
        ] {
            assert_eq!(of_rules(held, measured, all), said);
        }
    }

    #[test]
    fn curves_are_shown_in_percent() {
        assert_eq!(ours(Rule::Rises, Some(0.5)), "rises by 50.0 %");
        assert_eq!(ours(Rule::Falls, Some(1.0)), "falls by 50.0 %");
        assert_eq!(ours(Rule::Falls, Some(-0.5)), "rises by 100 %");
        assert_eq!(ours(Rule::Falls, Some(-1.0)), "–");
        assert_eq!((ours(Rule::Alike, Some(1.0)), ours(Rule::Alike, None)), ("1.00".to_owned(), "–".to_owned()));
    }
}
