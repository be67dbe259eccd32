//! Writes the service of the example `tonic`.

fn main() {
    #[cfg(feature = "tonic")]
    write_service();
    println!("cargo::rerun-if-changed=build.rs");
}

#[cfg(feature = "tonic")]
fn write_service() {
    use tonic_build::manual::{Builder, Method, Service};

    let pay = Method::builder()
        .name("pay")
        .route_name("Pay")
        .input_type("crate::Order")
        .output_type("crate::Receipt")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    let payments = Service::builder().package("shop").name("Payments");
    Builder::new().compile(&[payments.method(pay).build()]);
}
