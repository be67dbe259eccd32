//! Certificates for servers and clients. Each test makes its own, so no certificate in the repository can expire.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};

/// An authority, and the server's certificate that it issued.
#[derive(Debug)]
pub struct Certificates {
    authority: CertifiedIssuer<'static, KeyPair>,
    server: KeyAndCertificate,
}

/// A certificate and its private key, in PEM.
#[derive(Debug, Clone)]
pub struct KeyAndCertificate {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl Certificates {
    /// Makes an authority, and a server's certificate for `localhost` and 127.0.0.1.
    pub fn new() -> Self {
        Self::for_hosts(&["localhost", "127.0.0.1"])
    }

    /// Makes an authority, and a server's certificate for these names and addresses.
    pub fn for_hosts(hosts: &[&str]) -> Self {
        Self::issuing(&server_parameters(hosts))
    }

    /// Makes an authority, and a server's certificate that expired years ago.
    pub fn expired() -> Self {
        let mut parameters = server_parameters(&["localhost", "127.0.0.1"]);
        parameters.not_before = date_time_ymd(2020, 1, 1);
        parameters.not_after = date_time_ymd(2021, 1, 1);
        Self::issuing(&parameters)
    }

    fn issuing(parameters: &CertificateParams) -> Self {
        let authority = new_authority();
        let server = issue(&authority, parameters);
        Self { authority, server }
    }

    /// Returns the authority's own certificate, in PEM.
    pub fn authority(&self) -> String {
        self.authority.pem()
    }

    /// Makes a client's certificate.
    pub fn client(&self) -> KeyAndCertificate {
        let mut parameters = CertificateParams::default();
        name(&mut parameters, "a client");
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        issue(&self.authority, &parameters)
    }

    /// Writes the files that a server needs: its certificate, its key, and the authority of its clients.
    pub(crate) fn write(&self, folder: &Path) -> [PathBuf; 3] {
        let files = [
            ("server.pem", &self.server.certificate),
            ("server.key", &self.server.key),
            ("authority.pem", &self.authority()),
        ];
        files.map(|(file, text)| {
            let path = folder.join(file);
            fs::write(&path, text).expect("a file in the temporary folder");
            path
        })
    }
}

impl Default for Certificates {
    fn default() -> Self {
        Self::new()
    }
}

fn new_authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut parameters = CertificateParams::default();
    name(&mut parameters, "the authority of a test");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(parameters, new_key()).expect("valid parameters")
}

fn server_parameters(hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|&host| host.to_owned()).collect();
    let mut parameters = CertificateParams::new(hosts).expect("names of hosts");
    name(&mut parameters, "a server");
    // The nodes of a cluster are clients of each other.
    parameters.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    parameters
}

fn name(parameters: &mut CertificateParams, name: &str) {
    parameters.distinguished_name.push(DnType::CommonName, name);
}

fn issue(
    authority: &CertifiedIssuer<'static, KeyPair>,
    parameters: &CertificateParams,
) -> KeyAndCertificate {
    let key = new_key();
    let certificate = parameters
        .signed_by(&key, authority)
        .expect("valid parameters");
    KeyAndCertificate {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}

fn new_key() -> KeyPair {
    KeyPair::generate().expect("random numbers")
}
