//! placeholder
use super::Failure;
#[derive(clap::Args, Debug)]
pub struct DemoArgs {}
pub async fn demo(_: &DemoArgs) -> Result<(), Failure> {
    Ok(())
}
