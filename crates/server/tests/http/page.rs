//! The page: its files, how they are cached, and who may see them.

use crate::support::TestServer;
use reqwest::header::HeaderMap;

/// Asks for a path with one header; status, headers and content.
async fn ask(server: &TestServer, path: &str, header: (&str, &str)) -> (u16, HeaderMap, Vec<u8>) {
    let request = server.client.get(format!("{}{path}", server.base));
    let response = request.header(header.0, header.1).send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    (status, headers, response.bytes().await.unwrap().to_vec())
}

/// The files that a page names, as it names them.
fn named(page: &str) -> Vec<&str> {
    let quoted = page.split('"').skip(1).step_by(2);
    quoted.filter(|text| text.contains("?v=")).collect()
}

#[tokio::test]
async fn the_page_and_the_files_that_it_names_come_from_the_binary() {
    let server = TestServer::start().await;
    let (status, headers, page) = ask(&server, "/", ("accept-encoding", "identity")).await;
    assert_eq!(
        (status, &headers["content-type"]),
        (200, &"text/html; charset=utf-8".parse().unwrap())
    );
    assert_eq!(headers["cache-control"], "no-cache");
    let policy = headers["content-security-policy"].to_str().unwrap();
    assert!(
        policy.contains("default-src 'none'") && !policy.contains("unsafe"),
        "{policy}"
    );
    let page = String::from_utf8(page).unwrap();
    for remote in ["http://", "https://", "//cdn"] {
        assert!(!page.contains(&format!("\"{remote}")), "{remote} in {page}");
    }
    let files = named(&page);
    assert!(files.len() >= 2, "{page}");
    for file in files {
        let path = format!("/{}", file.trim_start_matches("./").trim_start_matches('/'));
        let (status, headers, plain) = ask(&server, &path, ("accept-encoding", "identity")).await;
        assert_eq!(status, 200, "{file}");
        // The version that the page names is that of the file.
        assert_eq!(
            headers["cache-control"], "public, max-age=31536000, immutable",
            "{file}"
        );
        let (_, headers, packed) = ask(&server, &path, ("accept-encoding", "br, gzip;q=0.5")).await;
        assert_eq!(
            (&headers["content-encoding"], &packed[..2]),
            (&"gzip".parse().unwrap(), &[0x1f, 0x8b][..])
        );
        // The end of a gzip file is the size of what it holds.
        let size = u32::from_le_bytes(packed[packed.len() - 4..].try_into().unwrap());
        assert_eq!(size as usize, plain.len(), "{file}");
        let bare = path.split('?').next().unwrap();
        let (_, headers, _) = ask(&server, bare, ("accept-encoding", "gzip;q=0")).await;
        assert_eq!(headers["cache-control"], "no-cache");
        assert!(!headers.contains_key("content-encoding"));
    }
}

#[tokio::test]
async fn a_file_that_the_browser_has_is_not_sent_again() {
    let server = TestServer::start().await;
    let (_, headers, page) = ask(&server, "/", ("accept", "*/*")).await;
    let tag = headers["etag"].to_str().unwrap();
    let (status, headers, body) = ask(&server, "/", ("if-none-match", &format!("W/\"x\", {tag}"))).await;
    assert_eq!(
        (status, body.len(), &headers["etag"]),
        (304, 0, &tag.parse().unwrap())
    );
    let (status, _, body) = ask(&server, "/", ("if-none-match", "W/\"x\"")).await;
    assert_eq!((status, body), (200, page.clone()));
    let head = server
        .client
        .head(format!("{}/", server.base))
        .send()
        .await
        .unwrap();
    assert_eq!(
        (head.status(), head.headers()["content-length"].to_str().unwrap()),
        (200.try_into().unwrap(), page.len().to_string().as_str())
    );
    assert!(head.bytes().await.unwrap().is_empty());
    let (status, reply) = server.raw("/app.js", "{}").await;
    assert_eq!(
        (status, reply["error"]["message"].as_str().unwrap()),
        (405, "/app.js does not take POST")
    );
}

#[tokio::test]
async fn the_page_needs_no_key_and_can_be_left_out() {
    let server = TestServer::configured(|config| config.api_keys = vec!["secret".to_owned()]).await;
    for path in ["/", "/app.js", "/app.css", "/icon.svg"] {
        assert_eq!(ask(&server, path, ("accept", "*/*")).await.0, 200, "{path}");
    }
    for path in ["/v1/engine", "/app", "/v1/models"] {
        assert_eq!(ask(&server, path, ("accept", "*/*")).await.0, 401, "{path}");
    }
    let server = TestServer::configured(|config| config.page = false).await;
    assert_eq!(ask(&server, "/", ("accept", "*/*")).await.0, 404);
}
