//! Requests and answers of Kafka's protocol, each behind its length.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The request that a record travels in.
pub const PRODUCE: i16 = 0;

pub async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let size = from.read_i32().await?;
    let mut frame = vec![0; usize::try_from(size).expect("a length")];
    from.read_exact(&mut frame).await?;
    Ok(frame)
}

pub async fn write_frame(to: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> io::Result<()> {
    let size = i32::try_from(frame.len()).expect("a length");
    to.write_all(&[&size.to_be_bytes(), frame].concat()).await
}
