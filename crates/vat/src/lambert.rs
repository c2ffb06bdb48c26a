//! Lambert's W, for the best size ratio (VAT App. B.1; Corless et al., "On the Lambert W function", 1996).

/// W₀(`x`) for `x` ≥ 0: the `w` with `w · e^w = x`. Infinite for an infinite `x`.
///
/// Newton's method on `w + ln w = ln x`, which overflows for no `x`. Each step doubles the correct digits: from this
/// start five steps are enough for all of them, and eight leave a margin.
pub fn w0(x: f64) -> f64 {
    debug_assert!(x >= 0.0, "the principal branch from 0 on");
    if x == 0.0 || x == f64::INFINITY {
        return x;
    }
    // ln(1 + x) is right at both ends: x for small x, ln x for large ones. It is never below W.
    let mut w = x.ln_1p();
    for _ in 0..8 {
        w *= (1.0 + x.ln() - w.ln()) / (1.0 + w);
    }
    w
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // Corless et al.: W(1) is the omega constant; W(e) = 1.
        for (x, w) in [
            (0.0, 0.0),
            (1.0, 0.567_143_290_409_783_8),
            (std::f64::consts::E, 1.0),
            (1.0 / std::f64::consts::E, 0.278_464_542_761_073_8),
            (f64::INFINITY, f64::INFINITY),
        ] {
            assert!(w0(x) == w || (w0(x) - w).abs() < 1e-14, "W({x}) = {}, not {w}", w0(x));
        }
    }

    #[test]
    fn it_inverts_w_times_e_to_the_w_over_the_whole_range() {
        for exponent in -300..=308 {
            let x = 10_f64.powi(exponent);
            let w = w0(x);
            let back = w.ln() + w;
            assert!((back - x.ln()).abs() <= 1e-12 * x.ln().abs().max(1.0), "W(1e{exponent}) = {w}");
        }
    }
}
