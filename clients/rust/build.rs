//! Makes the stubs from the contracts, as `buf build` has put them together: so no protoc is needed.

use std::{error::Error, fs};

use prost::Message;
use prost_types::FileDescriptorSet;

const CONTRACTS: &str = "stubs/contracts.binpb";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={CONTRACTS}");
    let contracts =
        fs::read(CONTRACTS).map_err(|problem| format!("{CONTRACTS}: {problem}; `make clients` makes it"))?;
    let named = "#[derive(strum::IntoStaticStr)] #[strum(serialize_all = \"snake_case\")]";
    tonic_prost_build::configure()
        .enum_attribute("handmesh.session.v1.Event.kind", named)
        .enum_attribute("handmesh.session.v1.Preview.delta", named)
        .server_mod_attribute(".", "#[cfg(test)]")
        .generate_default_stubs(true)
        .include_file("stubs.rs")
        .compile_fds(FileDescriptorSet::decode(&*contracts)?)?;
    Ok(())
}
