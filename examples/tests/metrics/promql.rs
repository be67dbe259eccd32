//! A parser for the parts of Prometheus's query language that the dashboard and the alert rules use: it finds the series and labels
//! that a query names.

/// The functions, operators and words that may occur in a query. Every other name is that of a series.
const WORDS: [&str; 17] = [
    "and",
    "bool",
    "count",
    "histogram_quantile",
    "increase",
    "label_values",
    "max_over_time",
    "min",
    "offset",
    "or",
    "rate",
    "sum",
    "unless",
    "vector",
    "by",
    "without",
    "on",
];

/// The words that are followed by a list of labels.
const GROUPS: [&str; 3] = ["by", "without", "on"];

/// The names in a query.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Query {
    /// Each series, with the labels by which it is selected.
    pub(crate) series: Vec<(String, Vec<String>)>,
    /// The selected values of labels, with their labels. Variables are not among them.
    pub(crate) values: Vec<(String, String)>,
    /// The labels that results are grouped by.
    pub(crate) groups: Vec<String>,
    /// The variables of the dashboard.
    pub(crate) variables: Vec<String>,
    /// The bare numbers.
    pub(crate) numbers: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Name(String),
    Text(String),
    Number(String),
    Variable(String),
    Sign(char),
}

impl Query {
    pub(crate) fn read(text: &str) -> Self {
        let mut query = Self::default();
        let tokens = tokens(text);
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token {
                Token::Name(name) if GROUPS.contains(&&**name) => {
                    let end = end_of(&tokens, at, ')');
                    query
                        .groups
                        .extend(tokens[at..end].iter().filter_map(name_of));
                    at = end;
                }
                Token::Name(name) if WORDS.contains(&&**name) => {}
                Token::Name(name) => {
                    let mut labels = Vec::new();
                    if tokens.get(at) == Some(&Token::Sign('{')) {
                        let end = end_of(&tokens, at, '}');
                        labels = query.choices(&tokens[at..end]);
                        at = end;
                    }
                    query.series.push((name.clone(), labels));
                }
                Token::Variable(name) => query.variables.push(name.clone()),
                Token::Number(number) => query.numbers.push(number.clone()),
                Token::Text(_) | Token::Sign(_) => {}
            }
        }
        query
    }

    /// Records the values between braces, and returns their labels.
    fn choices(&mut self, tokens: &[Token]) -> Vec<String> {
        let mut labels = Vec::new();
        for token in tokens {
            match token {
                Token::Name(label) => labels.push(label.clone()),
                Token::Text(values) => {
                    let label = labels.last().expect("a label before its value");
                    for value in values.split('|') {
                        match value.strip_prefix('$') {
                            Some(variable) => self.variables.push(variable.to_owned()),
                            None => self.values.push((label.clone(), value.to_owned())),
                        }
                    }
                }
                _ => {}
            }
        }
        labels
    }
}

fn name_of(token: &Token) -> Option<String> {
    match token {
        Token::Name(name) => Some(name.clone()),
        _ => None,
    }
}

fn end_of(tokens: &[Token], from: usize, sign: char) -> usize {
    let mut rest = tokens[from..].iter();
    let length = rest.position(|token| *token == Token::Sign(sign));
    from + length.unwrap_or_else(|| panic!("no {sign:?} in {tokens:?}"))
}

fn tokens(text: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            '"' => {
                let length = rest[1..].find('"').expect("the end of a text");
                (Token::Text(rest[1..=length].to_owned()), length + 2)
            }
            '$' => {
                let name = word(&rest[1..]);
                (Token::Variable(name.to_owned()), name.len() + 1)
            }
            first if first.is_ascii_digit() => {
                let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.');
                let number = &rest[..length.unwrap_or(rest.len())];
                (Token::Number(number.to_owned()), number.len())
            }
            _ if !word(rest).is_empty() => {
                let name = word(rest);
                (Token::Name(name.to_owned()), name.len())
            }
            sign => (Token::Sign(sign), sign.len_utf8()),
        };
        found.push(token);
        rest = rest[length..].trim_start();
    }
    found
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

#[test]
fn a_query_names_its_series_and_labels() {
    let query = Query::read(
        r#"sum by (job, le) (rate(a_bucket{key=~"$key", mode!~"x|y"}[5m])) > 0.5 or b unless on (job) c{} offset 1d"#,
    );
    let labels = |names: &[&str]| {
        names
            .iter()
            .map(|&name| name.to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        query.series,
        [
            ("a_bucket".to_owned(), labels(&["key", "mode"])),
            ("b".to_owned(), labels(&[])),
            ("c".to_owned(), labels(&[])),
        ]
    );
    assert_eq!(query.groups, labels(&["job", "le", "job"]));
    assert_eq!(query.variables, labels(&["key"]));
    assert_eq!(query.numbers, labels(&["5m", "0.5", "1d"]));
    let values = [("mode", "x"), ("mode", "y")];
    assert_eq!(
        query.values,
        values.map(|(label, value)| (label.to_owned(), value.to_owned()))
    );
}
