//! What is read or compiled and never run: sources, manifests, the pages that name tests, and mistakes in the attribute.

mod attribute_ui;
mod documented;
mod exported;
mod manifests;
mod public_interface;
mod reliability;
mod rooms;
