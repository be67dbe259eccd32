//! The modelled server against a real one.
