use super::*;
use crate::chart::{letters, outside};

const LOOK: Look<'_> = Look { titled: true, paints: &[], most: None };

fn bars(groups: &[&str], series: &[(&str, &[Option<Spread>])]) -> Chart {
    Chart {
        title: "A title".to_owned(),
        unit: "MiB".to_owned(),
        shape: ChartKind::Bars {
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            series: series.iter().map(|(name, bars)| ((*name).to_owned(), bars.to_vec())).collect(),
        },
    }
}

fn lines(log: bool, points: &[LinePoint]) -> Chart {
    Chart {
        title: "A title".to_owned(),
        unit: "MiB".to_owned(),
        shape: ChartKind::Lines { label: "x".to_owned(), log, series: vec![("a".to_owned(), points.to_vec())] },
    }
}

fn drawn(chart: &Chart, look: Look<'_>) -> Picture {
    let picture = picture(chart, look).unwrap();
    let left = outside(&picture, |text| letters::width(&text.text, FONT_SIZE));
    assert!(left.is_none(), "{left:?}");
    picture
}

fn rects(picture: &Picture, number: usize) -> Vec<(Point, (f64, f64))> {
    let of = |shape: &Shape| match shape {
        Shape::Rect { corner, size, paint } if *paint == Paint::Series(number) => Some((*corner, *size)),
        _ => None,
    };
    // Without the legend's, which is the first.
    picture.shapes.iter().filter_map(of).skip(1).collect()
}

#[test]
fn series_beyond_the_colours_look_otherwise_in_the_chart_and_in_the_legend() {
    let names: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    let figures = [Some([7.0; 3])];
    let series: Vec<(&str, &[Option<Spread>])> = names.iter().map(|name| (name.as_str(), &figures[..])).collect();
    let picture = drawn(&bars(&["P0"], &series), LOOK);
    let holes = picture.shapes.iter().filter(|shape| matches!(shape, Shape::Rect { paint: Paint::Ground, .. })).count();
    assert_eq!(holes, 2 * (series.len() - crate::chart::SERIES));
}

/// The lines of the first series, without the legend's.
fn curves(picture: &Picture) -> Vec<&[Point]> {
    let lines = picture.shapes.iter().filter_map(|shape| match shape {
        Shape::Line { points, paint: Paint::Series(_), .. } => Some(points.as_slice()),
        _ => None,
    });
    lines.skip(1).collect()
}

fn hints(picture: &Picture) -> Vec<&str> {
    let hints = picture.shapes.iter().filter_map(|shape| match shape {
        Shape::Hint { text, .. } => Some(text.as_str()),
        _ => None,
    });
    hints.collect()
}

#[test]
fn bars_are_as_high_as_their_figures_and_say_them() {
    let chart =
        bars(&["P0", "P1"], &[("a", &[Some([10.0, 9.0, 12.0]), Some([20.0; 3])]), ("b", &[Some([40.0; 3]), None])]);
    let picture = drawn(&chart, LOOK);
    let (a, b) = (rects(&picture, 0), rects(&picture, 1));
    assert_eq!((a.len(), b.len()), (2, 1));
    assert!((a[1].1.1 / a[0].1.1 - 2.0).abs() < 1e-9 && (b[0].1.1 / a[0].1.1 - 4.0).abs() < 1e-9);
    // They stand on one line, and the highest mark is theirs.
    assert!((a[0].0.1 + a[0].1.1 - b[0].0.1 - b[0].1.1).abs() < 1e-9);
    assert!((b[0].1.1 - CURVES_HEIGHT).abs() < 1e-9);
    let said = ["a, P0: 10.0 MiB (9.00–12.0)", "b, P0: 40.0 MiB", "a, P1: 20.0 MiB", "b, P1: not measured"];
    assert_eq!(hints(&picture), said);
}

#[test]
fn names_that_are_too_long_for_lines_stand_upright() {
    let upright = |groups: &[&str]| {
        let figures = vec![Some([1.0; 3]); groups.len()];
        let picture = drawn(&bars(groups, &[("a", &figures)]), LOOK);
        picture.shapes.iter().any(|shape| matches!(shape, Shape::Text(text) if text.direction == Direction::Up))
    };
    assert!(!upright(&["P0", "P1", "after the collection", "scans-of-100"]));
    assert!(upright(&["P0", "P1", "P2", "P3", "P4", "P5", "deduplication", "P7"]));
}

#[test]
fn what_was_not_measured_is_a_gap() {
    let point = |x: f64| (x, [x; 3]);
    let gap = (3.0, [f64::NAN; 3]);
    let picture = drawn(&lines(false, &[point(1.0), point(2.0), gap, point(4.0), point(5.0)]), LOOK);
    assert_eq!(curves(&picture).iter().map(|line| line.len()).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(hints(&picture).len(), 4);
    for nothing in [&[][..], &[gap], &[(f64::NAN, [1.0; 3])]] {
        assert!(super::picture(&lines(true, nothing), LOOK).is_none());
    }
    assert!(super::picture(&bars(&["P0"], &[("a", &[None])]), LOOK).is_none());
}

#[test]
fn equal_ratios_are_equally_far_apart_on_a_logarithmic_axis() {
    let points = [64.0, 256.0, 1024.0].map(|x| (x, [1.0; 3]));
    let picture = drawn(&lines(true, &points), LOOK);
    let [a, b, c] = curves(&picture)[0] else { panic!("{picture:?}") };
    assert!((b.0 - a.0 - (c.0 - b.0)).abs() < 1e-9);
}

#[test]
fn curves_of_many_points_have_no_marks_and_may_be_cut() {
    let points: Vec<LinePoint> = (1..=40).map(|x| (f64::from(x), [1000.0 / f64::from(x); 3])).collect();
    let whole = drawn(&lines(false, &points), LOOK);
    let discs = |picture: &Picture| picture.shapes.iter().filter(|s| matches!(s, Shape::Disc { .. })).count();
    // The legend's.
    assert_eq!((discs(&whole), hints(&whole).len()), (1, 0));
    assert_eq!(curves(&whole)[0].len(), 40);
    let cut = drawn(&lines(false, &points), Look { most: Some(100.0), ..LOOK });
    assert_eq!(curves(&cut)[0].len(), 32);
}
