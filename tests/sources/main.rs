//! Checks of text that is read or compiled and never run: sources, their language, manifests, pages that name tests, mistakes in the
//! attribute.

mod attribute_ui;
mod design;
mod documented;
mod exported;
mod files;
mod guide;
mod language;
mod links;
mod manifests;
mod names;
mod public_interface;
mod reliability;
mod rooms;
mod yaml;
