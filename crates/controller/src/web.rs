// SPDX-License-Identifier: Apache-2.0
//! The dashboard: files that are part of the program, and nothing from anywhere else. They hold no secret; what they show they get from
//! the API, by the token of who looks.

use axum::extract::Path;
use axum::http::{header, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};

/// What a page may load and reach: this controller alone.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        /// Each file by its name.
        const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../web/", $name)))),*];
    };
}

files!(
    "index.html",
    "app.css",
    "icon.svg",
    "app.js",
    "api.js",
    "dom.js",
    "chart.js",
    "map.js",
    "levels.js",
    "tenants.js",
    "trace.js",
    "nodes.js",
    "events.js",
);

/// The page itself.
pub async fn page() -> Response {
    file("index.html")
}

/// What it loads.
pub async fn part(Path(name): Path<String>) -> Response {
    file(&name)
}

fn file(name: &str) -> Response {
    let Some((_, text)) = FILES.iter().find(|(known, _)| *known == name) else {
        return crate::refusal::Refusal::Absent(format!("the dashboard has no file `{}`", model::plain(name)))
            .into_response();
    };
    let kind = match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/html; charset=utf-8",
    };
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Another version of the program may have another file of this name.
        (header::CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    (StatusCode::OK, headers, *text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_loads_is_there_and_nothing_comes_from_elsewhere() {
        for (name, text) in FILES {
            assert!(text.contains("SPDX-License-Identifier: Apache-2.0"), "{name}");
            for (at, _) in text.match_indices("http") {
                let rest = &text[at..];
                let known = ["http://www.w3.org/2000/svg"].iter().any(|known| rest.starts_with(known));
                let foreign = rest.starts_with("http://") || rest.starts_with("https://");
                assert!(known || !foreign, "{name} names {}", &rest[..rest.len().min(60)]);
            }
            for marker in ["from \"./", "href=\"/ui/", "src=\"/ui/"] {
                for (at, _) in text.match_indices(marker) {
                    let loaded = text[at + marker.len()..].split('"').next().unwrap();
                    assert!(FILES.iter().any(|(known, _)| *known == loaded), "{name} loads {loaded}");
                }
            }
            assert!(!text.contains("style=\"") && !text.contains("innerHTML"), "{name}: the policy forbids it");
        }
    }
}
