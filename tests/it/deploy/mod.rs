//! What is deployed: the chart, the manifests that are printed from it, the image, and the page that leads through all of it.

mod api_server;
mod chart;
mod container;
mod documented;
mod helm;
mod image;
mod manifests;
mod pods;
mod refusals;
mod schemas;
mod settings;

use std::path::PathBuf;

use serde_json::Value;
use testkit::repository;

/// The files of a folder of the repository, and of those in it, sorted.
fn files(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![repository().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path),
            }
        }
    }
    found.sort();
    found
}

/// The documents of a stream of YAML.
fn yaml(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("no YAML: {error}\n{text}"))
}
