//! The examples of the documents.

/// The blocks of a language, in order, without the indentation of a list.
pub(crate) fn blocks(manual: &str, language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = manual.lines().map(str::trim_start);
    while let Some(line) = lines.next() {
        let Some(found) = line.strip_prefix("```") else {
            continue;
        };
        let block: String = lines
            .by_ref()
            .take_while(|it| *it != "```")
            .flat_map(|it| [it, "\n"])
            .collect();
        if found == language {
            blocks.push(block);
        }
    }
    blocks
}
