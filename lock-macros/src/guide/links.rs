//! The links in a page of Markdown: `[text](target)`, and pictures, `![text](target)`.

/// A link or a picture.
pub(crate) struct Link<'a> {
    pub(crate) is_picture: bool,
    pub(crate) text: &'a str,
    pub(crate) target: &'a str,
}

impl Link<'_> {
    /// Returns the same link or picture with another target.
    pub(crate) fn to(&self, target: &str) -> String {
        let mark = if self.is_picture { "!" } else { "" };
        format!("{mark}[{}]({target})", self.text)
    }
}

/// Returns the page with a replacement for each link.
pub(crate) fn with_links(page: &str, mut replaced: impl FnMut(&Link<'_>) -> String) -> String {
    let (mut made, mut rest) = (String::new(), page);
    while let Some((before, after)) = rest.split_once("](") {
        let parts = before.rfind('[').zip(after.split_once(')'));
        let Some((open, (target, behind))) = parts else {
            made.extend([before, "]("]);
            rest = after;
            continue;
        };
        let is_picture = before[..open].ends_with('!');
        let link = Link {
            is_picture,
            text: &before[open + 1..],
            target,
        };
        made.push_str(&before[..open - usize::from(is_picture)]);
        made.push_str(&replaced(&link));
        rest = behind;
    }
    made + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_link_is_replaced_and_nothing_else() {
        let page = "A [b](c.md#d), ![e `f`](g.svg)\n[h\ni](j) k](l [m](n";
        assert_eq!(with_links(page, |link| link.to(link.target)), page);
        let shown =
            |link: &Link<'_>| format!("<{} {} {}>", link.is_picture, link.text, link.target);
        assert_eq!(
            with_links(page, shown),
            "A <false b c.md#d>, <true e `f` g.svg>\n<false h\ni j> k](l [m](n"
        );
    }
}
