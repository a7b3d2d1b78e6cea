//! Every relative link and anchor leads somewhere, and every page can be reached from the index.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::{documents, prose_lines, read, relative, root};

/// The targets of the links in a document that lead into the repository, as `(line, file, anchor)`.
fn links(document: &str) -> Vec<(usize, String, Option<String>)> {
    let text = read(document);
    let mut found = Vec::new();
    for (number, line) in prose_lines(&text) {
        let prose: String = without_code(line);
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")) {
            let (file, anchor) =
                target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
            let here = root().join(document);
            let path = match file {
                "" => document.to_owned(),
                file => relative(&here.parent().expect("a file is in a directory").join(file)),
            };
            found.push((number, path, anchor.map(str::to_owned)));
        }
    }
    found
}

/// A line without its code spans, in which brackets are no links.
fn without_code(line: &str) -> String {
    // An odd number of backticks leaves the last one unpaired: what follows it is prose.
    let parts: Vec<&str> = line.split('`').collect();
    let last = parts.len() - 1;
    let is_prose = |index: usize| index.is_multiple_of(2) || index == last;
    parts.iter().enumerate().filter(|(index, _)| is_prose(*index)).map(|(_, part)| *part).collect()
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose_lines(text).filter(|(_, line)| line.starts_with('#'));
    let slugs = headings.map(|(_, line)| slug(line.trim_start_matches('#').trim()));
    slugs
        .map(|slug| {
            let count = seen.entry(slug.clone()).or_default();
            *count += 1;
            if *count == 1 { slug } else { format!("{slug}-{}", *count - 1) }
        })
        .collect()
}

fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_relative_link_and_anchor_leads_somewhere() {
    let mut broken = Vec::new();
    for document in documents() {
        for (number, file, anchor) in links(&document) {
            if !root().join(&file).exists() {
                broken.push(format!("{document}:{number}: there is no {file}"));
            } else if let Some(anchor) = anchor
                && !anchors(&read(&file)).contains(&anchor)
            {
                broken.push(format!("{document}:{number}: {file} has no heading for #{anchor}"));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn every_page_can_be_reached_from_the_index() {
    let index = "docs/README.md".to_owned();
    let pages = documents();
    let (mut reached, mut left) = (BTreeSet::from([index.clone()]), vec![index]);
    while let Some(page) = left.pop() {
        for (_, file, _) in links(&page) {
            if pages.contains(&file) && reached.insert(file.clone()) {
                left.push(file);
            }
        }
    }
    let missing: Vec<String> = pages.into_iter().filter(|page| !reached.contains(page)).collect();
    assert!(missing.is_empty(), "no link leads to:\n{}", missing.join("\n"));
}

/// The index itself names every page below docs, so that a reader need not guess what is where.
#[test]
fn the_index_names_every_page() {
    let named: BTreeSet<String> = links("docs/README.md").into_iter().map(|(_, file, _)| file).collect();
    let pages = documents().into_iter().filter(|page| page.starts_with("docs/") && page != "docs/README.md");
    let missing: Vec<String> = pages.filter(|page| !named.contains(page)).collect();
    assert!(missing.is_empty(), "docs/README.md does not name:\n{}", missing.join("\n"));
}

#[test]
fn anchors_are_made_as_github_makes_them() {
    let text = "# What is Redis' way\n## `store`\n## A & B\n## A & B\n```\n# no heading\n```\n";
    let expected = ["what-is-redis-way", "store", "a--b", "a--b-1"].map(str::to_owned);
    assert_eq!(anchors(text), BTreeSet::from(expected));
}
