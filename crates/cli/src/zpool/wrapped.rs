//! Texts below a heading such as `status: `.

/// Width at which texts are wrapped.
const WIDTH: usize = 70;

/// A text below a heading such as `status: `, wrapped.
pub fn wrapped(heading: &str, text: &str) -> String {
    let mut out = format!("{heading}: ");
    let mut width = 0;
    for word in text.split(' ') {
        if width > 0 && width + 1 + word.chars().count() > WIDTH {
            out.push_str("\n\t");
            width = 0;
        } else if width > 0 {
            out.push(' ');
            width += 1;
        }
        out.push_str(word);
        width += word.chars().count();
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_admin::Problem;

    #[test]
    fn texts_are_wrapped_with_a_tab() {
        let text = wrapped("status", &Problem::FailingDevice.status());
        assert!(text.lines().skip(1).all(|line| line.starts_with('\t')), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH + 8) && text.ends_with('\n'), "{text}");
        assert_eq!(text.split_whitespace().skip(1).collect::<Vec<_>>().join(" "), Problem::FailingDevice.status());
    }
}
