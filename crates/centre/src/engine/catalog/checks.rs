//! Rules for the values of a row, as remotes can check them.
//!
//! A strict reader of a small language: comparisons of a column with constants, or of two columns,
//! IN, BETWEEN, IS NULL, the length of a text, and AND, OR and NOT of these, in the spelling of
//! people and in PostgreSQL's own. Whatever is not understood wholly is left to the centre: a
//! remote must never refuse what the centre would take.

use tidewater_protocol::ColumnType;

use super::{CheckInfo, ColumnInfo};

/// A list of more values is not told to people.
const TOLD_VALUES: usize = 12;

/// The rule of a constraint with this condition, if remotes can check it.
pub fn understood(columns: &[ColumnInfo], name: &str, condition: &str) -> Option<CheckInfo> {
    let mut parser = Parser {
        tokens: tokens(condition)?,
        at: 0,
        columns,
        used: Vec::new(),
        unjudged: Vec::new(),
    };
    let CheckNode::Condition(sql) = parser.any()? else {
        return None;
    };
    if parser.at != parser.tokens.len() || parser.used.is_empty() {
        return None;
    }
    let mut condition: String = parser
        .unjudged
        .iter()
        .map(|it| format!("{it} OR "))
        .collect();
    condition.push_str(&sql);
    Some(CheckInfo {
        name: name.to_owned(),
        columns: parser.used,
        condition,
    })
}

/// The rule that a text has at most so many characters, blanks at the end apart.
pub fn at_most(columns: &[ColumnInfo], column: usize, characters: i32) -> CheckInfo {
    let sql = quoted(&columns[column].name);
    CheckInfo {
        name: format!("at most {characters} characters"),
        columns: vec![column],
        condition: format!("length(rtrim({sql}, ' ')) <= {characters}"),
    }
}

/// The rule that a text of a key is spelled as the centre spells it, so that one row never has two
/// keys: a varchar cuts off blanks beyond its limit, and to a char blanks at the end mean nothing.
/// `None` where every text is.
pub fn one_spelling(
    columns: &[ColumnInfo],
    column: usize,
    characters: Option<i32>,
) -> Option<CheckInfo> {
    let sql = quoted(&columns[column].name);
    let limit = characters.map(|limit| {
        (
            format!("at most {limit} characters"),
            format!("length({sql}) <= {limit}"),
        )
    });
    let padding = columns[column].is_padded.then(|| {
        (
            "no blanks at the end".to_owned(),
            format!("rtrim({sql}, ' ') = {sql}"),
        )
    });
    let (names, conditions): (Vec<_>, Vec<_>) = limit.into_iter().chain(padding).unzip();
    (!names.is_empty()).then(|| CheckInfo {
        name: names.join(", "),
        columns: vec![column],
        condition: conditions.join(" AND "),
    })
}

/// The rule that a value is one of these.
pub fn one_of(columns: &[ColumnInfo], column: usize, values: &[String]) -> CheckInfo {
    let texts: Vec<String> = values.iter().map(|it| text(it)).collect();
    let more = match values.len() > TOLD_VALUES {
        true => ", ...",
        false => "",
    };
    let told = &values[..values.len().min(TOLD_VALUES)];
    CheckInfo {
        name: format!("one of {}{more}", told.join(", ")),
        columns: vec![column],
        condition: format!(
            "{} IN ({})",
            quoted(&columns[column].name),
            texts.join(", ")
        ),
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn text(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

#[derive(Clone, Debug, PartialEq)]
enum CheckToken {
    /// A word in small letters.
    Word(String),
    /// A name in quotes.
    Name(String),
    Number(String),
    Text(String),
    Symbol(&'static str),
}

const SYMBOLS: [&str; 14] = [
    "::", "<=", ">=", "<>", "!=", "==", "<", ">", "=", "(", ")", "[", "]", ",",
];

fn tokens(text: &str) -> Option<Vec<CheckToken>> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let word = |it: char| it.is_alphanumeric() || it == '_';
        if first == '\'' || first == '"' {
            let (value, end) = in_quotes(rest, first)?;
            found.push(match first {
                '"' => CheckToken::Name(value),
                _ => CheckToken::Text(value),
            });
            rest = &rest[end..];
        } else if first.is_ascii_digit() {
            let end = rest.find(|it: char| !(it.is_ascii_digit() || it == '.'));
            let (number, beyond) = rest.split_at(end.unwrap_or(rest.len()));
            if beyond.starts_with(word) || number.parse::<f64>().is_err() {
                return None;
            }
            found.push(CheckToken::Number(number.to_owned()));
            rest = beyond;
        } else if word(first) {
            let end = rest.find(|it: char| !word(it)).unwrap_or(rest.len());
            found.push(CheckToken::Word(rest[..end].to_ascii_lowercase()));
            rest = &rest[end..];
        } else if let Some(digits) = rest.strip_prefix('-') {
            // Only the sign of a constant.
            let digits = digits.trim_start();
            let is_operand = matches!(
                found.last(),
                Some(
                    CheckToken::Number(_)
                        | CheckToken::Name(_)
                        | CheckToken::Word(_)
                        | CheckToken::Symbol(")")
                )
            );
            if is_operand || !digits.starts_with(|it: char| it.is_ascii_digit()) {
                return None;
            }
            let end = digits.find(|it: char| !(it.is_ascii_digit() || it == '.'));
            let (number, beyond) = digits.split_at(end.unwrap_or(digits.len()));
            if beyond.starts_with(word) || number.parse::<f64>().is_err() {
                return None;
            }
            found.push(CheckToken::Number(format!("-{number}")));
            rest = beyond;
        } else {
            let symbol = SYMBOLS.iter().find(|it| rest.starts_with(**it))?;
            found.push(CheckToken::Symbol(symbol));
            rest = &rest[symbol.len()..];
        }
        rest = rest.trim_start();
    }
    Some(found)
}

/// What stands in quotes at the beginning, and where it ends.
fn in_quotes(text: &str, quote: char) -> Option<(String, usize)> {
    let mut value = String::new();
    let mut characters = text.char_indices().skip(1).peekable();
    while let Some((at, character)) = characters.next() {
        if character != quote {
            value.push(character);
        } else if characters.next_if(|(_, next)| *next == quote).is_some() {
            value.push(quote);
        } else {
            return Some((value, at + 1));
        }
    }
    None
}

/// What values are compared as.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ComparedKind {
    /// Numbers that are exact in SQLite.
    Number,
    /// Numbers whose fractions are rounded in another way than constants are.
    Real,
    Text,
    Date,
}

enum CheckNode {
    Condition(String),
    Column(String, ComparedKind),
    Number(String),
    Text(String),
}

struct Parser<'c> {
    tokens: Vec<CheckToken>,
    at: usize,
    columns: &'c [ColumnInfo],
    used: Vec<usize>,
    /// Conditions under which nothing is said of a row.
    unjudged: Vec<String>,
}

impl Parser<'_> {
    fn takes(&mut self, token: &CheckToken) -> bool {
        let found = self.tokens.get(self.at) == Some(token);
        self.at += usize::from(found);
        found
    }

    fn word(&mut self, word: &str) -> bool {
        self.takes(&CheckToken::Word(word.to_owned()))
    }

    fn symbol(&mut self, symbol: &'static str) -> bool {
        self.takes(&CheckToken::Symbol(symbol))
    }

    fn any(&mut self) -> Option<CheckNode> {
        self.joined("or", " OR ", |parser| {
            parser.joined("and", " AND ", Parser::not)
        })
    }

    fn joined(
        &mut self,
        word: &str,
        operator: &str,
        part: impl Fn(&mut Self) -> Option<CheckNode>,
    ) -> Option<CheckNode> {
        let first = part(self)?;
        if !self
            .tokens
            .get(self.at)
            .is_some_and(|it| *it == CheckToken::Word(word.to_owned()))
        {
            return Some(first);
        }
        let mut parts = vec![condition(first)?];
        while self.word(word) {
            parts.push(condition(part(self)?)?);
        }
        Some(CheckNode::Condition(format!("({})", parts.join(operator))))
    }

    fn not(&mut self) -> Option<CheckNode> {
        if self.word("not") {
            let inner = condition(self.not()?)?;
            return Some(CheckNode::Condition(format!("NOT {inner}")));
        }
        self.predicate()
    }

    fn predicate(&mut self) -> Option<CheckNode> {
        let left = self.operand()?;
        const COMPARISONS: [(&str, &str); 8] = [
            ("<=", "<="),
            (">=", ">="),
            ("<>", "<>"),
            ("!=", "<>"),
            ("==", "="),
            ("<", "<"),
            (">", ">"),
            ("=", "="),
        ];
        for (symbol, operator) in COMPARISONS {
            if !self.symbol(symbol) {
                continue;
            }
            if operator == "=" && self.word("any") {
                return self.list(left, "IN");
            }
            if operator == "<>" && self.word("all") {
                return self.list(left, "NOT IN");
            }
            let right = self.operand()?;
            return compared(left, operator, right);
        }
        if self.word("is") {
            let not = if self.word("not") { "NOT " } else { "" };
            let (CheckNode::Column(sql, _), true) = (left, self.word("null")) else {
                return None;
            };
            return Some(CheckNode::Condition(format!("({sql} IS {not}NULL)")));
        }
        let not = self.word("not");
        if self.word("in") {
            return self.list(left, if not { "NOT IN" } else { "IN" });
        }
        if self.word("between") {
            let CheckNode::Column(sql, kind) = left else {
                return None;
            };
            let low = self.operand()?;
            if !self.word("and") {
                return None;
            }
            let high = self.operand()?;
            let low = condition(compared(CheckNode::Column(sql.clone(), kind), ">=", low)?)?;
            let high = condition(compared(CheckNode::Column(sql, kind), "<=", high)?)?;
            let not = if not { "NOT " } else { "" };
            return Some(CheckNode::Condition(format!("({not}({low} AND {high}))")));
        }
        (!not).then_some(left)
    }

    /// `(1, 2)`, `(ARRAY['a'::text, 'b'::text])`, `((ARRAY[...])::text[])`.
    fn list(&mut self, left: CheckNode, operator: &str) -> Option<CheckNode> {
        let CheckNode::Column(sql, kind) = left else {
            return None;
        };
        let mut open = 0;
        while self.symbol("(") {
            open += 1;
        }
        let is_array = self.word("array") && self.symbol("[");
        if open == 0 || !is_array && open > 1 {
            return None;
        }
        let mut values = Vec::new();
        loop {
            values.push(constant(&self.operand()?, kind)?);
            if !self.symbol(",") {
                break;
            }
        }
        if is_array && !self.symbol("]") {
            return None;
        }
        for _ in 0..open {
            if !self.symbol(")") {
                return None;
            }
            while self.cast().is_some_and(|it| !it.is_empty()) {}
        }
        let values = values.join(", ");
        Some(CheckNode::Condition(format!(
            "({sql} {operator} ({values}))"
        )))
    }

    /// A type to which something is cast; empty where nothing is, `None` if it is none that is
    /// known.
    fn cast(&mut self) -> Option<String> {
        if !self.symbol("::") {
            return Some(String::new());
        }
        let mut words = Vec::new();
        while let Some(CheckToken::Word(word)) = self.tokens.get(self.at) {
            if ["and", "or", "is", "in", "not", "between"].contains(&word.as_str()) {
                break;
            }
            words.push(word.clone());
            self.at += 1;
        }
        if self.symbol("[") && !self.symbol("]") {
            return None;
        }
        let name = words.join(" ");
        CASTS.contains(&&*name).then_some(name)
    }

    fn operand(&mut self) -> Option<CheckNode> {
        let mut node = match self.tokens.get(self.at)?.clone() {
            CheckToken::Number(number) => {
                self.at += 1;
                CheckNode::Number(number)
            }
            CheckToken::Text(value) => {
                self.at += 1;
                CheckNode::Text(value)
            }
            CheckToken::Name(name) => {
                self.at += 1;
                self.column(|column| column.name == name)?
            }
            CheckToken::Symbol("(") => {
                self.at += 1;
                let inner = self.any()?;
                if !self.symbol(")") {
                    return None;
                }
                inner
            }
            CheckToken::Word(word) => {
                self.at += 1;
                match ["length", "char_length", "character_length"].contains(&&*word)
                    && self.tokens.get(self.at) == Some(&CheckToken::Symbol("("))
                {
                    true => match self.operand()? {
                        CheckNode::Column(sql, ComparedKind::Text) => {
                            CheckNode::Column(format!("length({sql})"), ComparedKind::Number)
                        }
                        _ => return None,
                    },
                    false => self.column(|column| column.name.eq_ignore_ascii_case(&word))?,
                }
            }
            CheckToken::Symbol(_) => return None,
        };
        loop {
            let cast = self.cast()?;
            node = match (node, &*cast) {
                (node, "") => return Some(node),
                (CheckNode::Text(value), "text" | "character varying" | "bpchar" | "date") => {
                    CheckNode::Text(value)
                }
                (CheckNode::Text(value), cast) if NUMBERS.contains(&cast) => {
                    value.parse::<f64>().ok()?;
                    CheckNode::Number(value)
                }
                (CheckNode::Number(number), cast) if NUMBERS.contains(&cast) => {
                    CheckNode::Number(number)
                }
                (CheckNode::Column(sql, ComparedKind::Text), "text" | "character varying") => {
                    CheckNode::Column(sql, ComparedKind::Text)
                }
                (
                    CheckNode::Column(sql, kind @ (ComparedKind::Number | ComparedKind::Real)),
                    cast,
                ) if NUMBERS.contains(&cast) && cast != "smallint" => CheckNode::Column(sql, kind),
                _ => return None,
            };
        }
    }

    fn column(&mut self, is_meant: impl Fn(&ColumnInfo) -> bool) -> Option<CheckNode> {
        let index = self.columns.iter().position(is_meant)?;
        let column = &self.columns[index];
        let name = quoted(&column.name);
        let (sql, kind, unjudged) = match column.column_type.as_ref().ok()? {
            ColumnType::Integer => (name, ComparedKind::Number, None),
            ColumnType::Real => (name, ComparedKind::Real, None),
            // Up to 15 digits a number is told from every other one.
            ColumnType::Decimal { .. } => (
                format!("CAST({name} AS REAL)"),
                ComparedKind::Number,
                Some(format!(
                    "coalesce(length({name}) > 15 OR {name} GLOB '*[a-zA-Z]*', 0)"
                )),
            ),
            ColumnType::Text if column.is_padded => {
                (format!("rtrim({name}, ' ')"), ComparedKind::Text, None)
            }
            ColumnType::Text if column.has_one_spelling => (name, ComparedKind::Text, None),
            ColumnType::Date => (
                format!("substr({name}, 1, 10)"),
                ComparedKind::Date,
                Some(format!(
                    "coalesce({name} NOT GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*', 0)"
                )),
            ),
            _ => return None,
        };
        let unjudged = unjudged.filter(|it| !self.unjudged.contains(it));
        self.unjudged.extend(unjudged);
        if !self.used.contains(&index) {
            self.used.push(index);
        }
        Some(CheckNode::Column(sql, kind))
    }
}

/// The types that numbers are cast to without becoming others.
const NUMBERS: [&str; 5] = [
    "numeric",
    "integer",
    "bigint",
    "smallint",
    "double precision",
];

const CASTS: [&str; 9] = [
    "numeric",
    "integer",
    "bigint",
    "smallint",
    "double precision",
    "text",
    "character varying",
    "bpchar",
    "date",
];

fn condition(node: CheckNode) -> Option<String> {
    match node {
        CheckNode::Condition(sql) => Some(sql),
        _ => None,
    }
}

fn compared(left: CheckNode, operator: &str, right: CheckNode) -> Option<CheckNode> {
    let (left, right) = match (&left, &right) {
        (CheckNode::Column(left, kind), CheckNode::Column(right, other))
            if kind == other && *kind != ComparedKind::Text =>
        {
            (left.clone(), right.clone())
        }
        // Which of two texts comes first is the collation's affair.
        (CheckNode::Column(_, ComparedKind::Text), _)
        | (_, CheckNode::Column(_, ComparedKind::Text))
            if !["=", "<>"].contains(&operator) =>
        {
            return None;
        }
        (CheckNode::Column(left, kind), right) => (left.clone(), constant(right, *kind)?),
        (left, CheckNode::Column(right, kind)) => (constant(left, *kind)?, right.clone()),
        _ => return None,
    };
    Some(CheckNode::Condition(format!("({left} {operator} {right})")))
}

/// A constant that values of a kind can be compared with, in SQL.
fn constant(node: &CheckNode, kind: ComparedKind) -> Option<String> {
    match (node, kind) {
        (CheckNode::Number(number), ComparedKind::Number) if number.len() <= 15 => {
            Some(number.clone())
        }
        (CheckNode::Number(number), ComparedKind::Real) => {
            let small = number.parse::<i32>().ok()?.unsigned_abs() < 1 << 24;
            small.then(|| number.clone())
        }
        (CheckNode::Text(value), ComparedKind::Text) if !value.contains('\0') => {
            Some(text(value.trim_end_matches(' '))).filter(|_| !value.ends_with(' '))
        }
        (CheckNode::Text(value), ComparedKind::Date) => {
            let of_date = |(at, it): (usize, char)| match at {
                4 | 7 => it == '-',
                _ => it.is_ascii_digit(),
            };
            let is_date = value.len() == 10 && value.char_indices().all(of_date);
            is_date.then(|| text(value))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> Vec<ColumnInfo> {
        let column = |name: &str, column_type, is_padded| ColumnInfo {
            name: name.into(),
            type_name: String::new(),
            column_type: Ok(column_type),
            nullable: true,
            default: None,
            has_default: false,
            is_generated: false,
            is_by_default: true,
            is_ambiguous: false,
            has_one_spelling: true,
            is_padded,
            numbering: None,
        };
        vec![
            column("qty", ColumnType::Integer, false),
            column("price", ColumnType::Decimal { scale: Some(2) }, false),
            column("status", ColumnType::Text, false),
            column("Sex", ColumnType::Text, true),
            column("born", ColumnType::Date, false),
            column("weight", ColumnType::Real, false),
            column("flag", ColumnType::Boolean, false),
        ]
    }

    #[track_caller]
    fn is(condition: &str, expected: &str) {
        let found = understood(&columns(), "c", condition).map(|it| it.condition);
        assert_eq!(found.as_deref(), Some(expected), "{condition}");
    }

    #[test]
    fn what_is_understood_is_said_in_sql_of_remotes() {
        is(
            "((qty > 0) AND (qty <= 100))",
            "((\"qty\" > 0) AND (\"qty\" <= 100))",
        );
        is(
            "qty between 1 and 5 or qty = -1",
            "((((\"qty\" >= 1) AND (\"qty\" <= 5))) OR (\"qty\" = -1))",
        );
        is("(NOT (qty < 0))", "NOT (\"qty\" < 0)");
        is("((qty)::numeric > 0.5)", "(\"qty\" > 0.5)");
        is("(qty IS NOT NULL)", "(\"qty\" IS NOT NULL)");
        is(
            "(price > (0)::numeric)",
            "coalesce(length(\"price\") > 15 OR \"price\" GLOB '*[a-zA-Z]*', 0) OR \
             (CAST(\"price\" AS REAL) > 0)",
        );
        is(
            "((status)::text = ANY ((ARRAY['new'::character varying, 'it''s'::character varying])::text[]))",
            "(\"status\" IN ('new', 'it''s'))",
        );
        is(
            "(status <> ALL (ARRAY['a'::text, 'b'::text]))",
            "(\"status\" NOT IN ('a', 'b'))",
        );
        is("status not in ('a', 'b')", "(\"status\" NOT IN ('a', 'b'))");
        is(
            "(char_length((status)::text) > 3)",
            "(length(\"status\") > 3)",
        );
        is(
            "(\"Sex\" = ANY (ARRAY['m'::bpchar, 'f'::bpchar]))",
            "(rtrim(\"Sex\", ' ') IN ('m', 'f'))",
        );
        is(
            "(born >= '2000-01-01'::date)",
            "coalesce(\"born\" NOT GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*', 0) OR \
             (substr(\"born\", 1, 10) >= '2000-01-01')",
        );
        is("(weight > (0)::double precision)", "(\"weight\" > 0)");
    }

    #[test]
    fn what_is_not_understood_wholly_is_left_to_the_centre() {
        for condition in [
            "(status ~ '^a'::text)",
            "(status > 'a'::text)",
            "(qty > 0) AND f(qty)",
            "(qty > 0) OR (status ~~ 'a%'::text)",
            "(qty + 1) > 0",
            "qty - 1 > 0",
            "flag",
            "(weight > (21.35)::double precision)",
            "(qty > 0",
            "qty > 0)",
            "1 > 0",
            "other > 0",
            "qty > 'a'",
            "qty > 1e3",
            "status = 'a '",
            "born > 'yesterday'::date",
            "NOT qty",
            "qty IN (1, qty)",
            "qty IN ((1))",
            "",
            "'",
        ] {
            assert_eq!(understood(&columns(), "c", condition), None, "{condition}");
        }
    }
}
