//! HTML that is XML too: every text is escaped, every element is closed.

use crate::chart::svg::escaped;

/// A part of a page.
#[derive(Clone, Debug, Default)]
pub struct Markup(String);

impl Markup {
    /// As it is written to a file.
    pub fn into_string(self) -> String {
        self.0
    }

    /// What needs no escaping: styles, scripts and pictures, which are made here.
    pub fn ours(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl FromIterator<Self> for Markup {
    fn from_iter<T: IntoIterator<Item = Self>>(parts: T) -> Self {
        Self(parts.into_iter().map(|part| part.0).collect())
    }
}

/// Attributes with their values.
pub type Attributes<'a> = &'a [(&'a str, &'a str)];

/// Text.
pub fn text(text: &str) -> Markup {
    Markup(escaped(text))
}

/// Sentences, in which what stands between backticks is code.
pub fn prose(said: &str) -> Markup {
    if !said.matches('`').count().is_multiple_of(2) {
        return text(said);
    }
    let part = |(at, part): (usize, &str)| if at.is_multiple_of(2) { text(part) } else { words("code", &[], part) };
    said.split('`').enumerate().map(part).collect()
}

/// Text in an element.
pub fn words(name: &str, attributes: Attributes<'_>, inner: &str) -> Markup {
    element(name, attributes, [text(inner)])
}

/// An element.
pub fn element(name: &str, attributes: Attributes<'_>, inner: impl IntoIterator<Item = Markup>) -> Markup {
    let inner: Markup = inner.into_iter().collect();
    // A line for each element that browsers show as a block, so that the page can be read as text.
    let end = if IN_LINES.contains(&name) { "" } else { "\n" };
    Markup(format!("<{name}{}>{}</{name}>{end}", attributes_of(attributes), inner.0))
}

/// An element that has nothing in it.
pub fn empty(name: &str, attributes: Attributes<'_>) -> Markup {
    Markup(format!("<{name}{}/>\n", attributes_of(attributes)))
}

const IN_LINES: [&str; 7] = ["a", "b", "code", "small", "span", "strong", "option"];

fn attributes_of(attributes: Attributes<'_>) -> String {
    attributes.iter().map(|(name, value)| format!(" {name}=\"{}\"", escaped(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_stands_between_backticks() {
        assert_eq!(prose("a `<b>` c").into_string(), "a <code>&lt;b&gt;</code> c");
        assert_eq!(prose("a ` b").into_string(), "a ` b");
    }

    #[test]
    fn nothing_gets_out_of_its_element() {
        let hostile = "</p><script>'\"&";
        let page = element("p", &[("title", hostile)], [text(hostile), empty("br", &[]), words("b", &[], "c")]);
        let escaped = "&lt;/p&gt;&lt;script&gt;&#39;&quot;&amp;";
        assert_eq!(page.into_string(), format!("<p title=\"{escaped}\">{escaped}<br/>\n<b>c</b></p>\n"));
    }
}
