//! Checks of text that is read or compiled and never run: sources, manifests, pages that name tests, mistakes in the
//! attribute.

mod alerts;
mod attribute_ui;
mod exported;
mod files;
mod guide;
mod links;
mod manifests;
mod public_interface;
mod reliability;
mod rooms;
mod scripts;
