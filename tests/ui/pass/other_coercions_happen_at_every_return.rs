//! Other coercions happen at every return.

use lock_core::distributed_lock;

fn same(x: u8) -> u8 {
    x
}

#[distributed_lock(key = "slice:{n}", on_error = |_| &[])]
async fn slice(n: u8) -> &'static [u8] {
    if n > 1 {
        return &[1, 2];
    }
    &[1]
}

#[distributed_lock(key = "function:{n}", on_error = |_| same)]
async fn function(n: u8) -> fn(u8) -> u8 {
    if n > 1 {
        return same;
    }
    |x| x + 1
}

#[distributed_lock(key = "text:{text}", on_error = |_| panic!("no lock"))]
async fn text(text: &mut String) -> &str {
    if text.is_empty() {
        return text;
    }
    text.push('x');
    text
}

#[distributed_lock(key = "all", on_error = |_| Vec::new())]
async fn closures(n: u8) -> Vec<Box<dyn Fn(u8) -> u8 + Send>> {
    if n > 1 {
        return vec![Box::new(|x| x), Box::new(move |_| n)];
    }
    vec![Box::new(|x| x)]
}
