//! Checks of files that are read or compiled, and never run: sources, manifests, pages, alert rules, and mistakes in the use of the
//! attribute.

mod alerts;
mod attribute_ui;
mod files;
mod folders;
mod guide;
mod links;
mod manifests;
mod public_interface;
mod reliability;
mod scripts;
