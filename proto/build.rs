//! Compiles the protocol files to Rust, and keeps secrets out of `Debug`.
//!
//! Debug output is derived for every message but those that carry secrets.
//! Which these are is read from the protocol itself, so that a secret field
//! added there is redacted without anyone having to remember it here.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use protox::prost_reflect::{
    DescriptorPool, ExtensionDescriptor, FieldDescriptor, MessageDescriptor,
};

const PROTO_DIR: &str = "proto";
const PROTO_FILES: [&str; 3] = [
    "csi.proto",
    "pluginregistration.proto",
    "snapshotmetadata.proto",
];
/// The packages with messages that may carry secrets, and the file with the `Debug` of these.
const SECRET_PACKAGES: [(&str, &str); 2] = [
    ("csi.v1", "redaction.rs"),
    ("snapshotmetadata", "snapshotmetadata_redaction.rs"),
];
/// Messages of changed blocks that are CSI's own, field by field: an answer of a driver is passed on as
/// it is.
const AS_IN_CSI: [&str; 4] = [
    "BlockMetadata",
    "BlockMetadataType",
    "GetMetadataAllocatedResponse",
    "GetMetadataDeltaResponse",
];
/// The option that marks a secret field, and its number in `FieldOptions`.
const SECRET_OPTION: (&str, u32) = ("csi.v1.csi_secret", 1059);

fn main() -> anyhow::Result<()> {
    println!("cargo::rerun-if-changed={PROTO_DIR}");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").context("OUT_DIR is set by cargo")?);

    let compiled = compile(true)?;
    let carriers = secret_carriers(&compiled.descriptor_pool())?;

    let mut builder = tonic_prost_build::configure()
        .btree_map(".")
        .skip_debug(carriers.keys().map(|message| format!(".{message}")));
    for name in AS_IN_CSI {
        let (ours, csi) = (
            format!(".snapshotmetadata.{name}"),
            format!("crate::csi::v1::{name}"),
        );
        builder = builder.extern_path(ours, csi);
    }
    builder
        .compile_fds(compiled.file_descriptor_set())
        .context("generating the Rust types")?;

    for (package, file) in SECRET_PACKAGES {
        write(&out_dir.join(file), debug_impls(package, &carriers)?)?;
    }
    write(&out_dir.join("secret_fields.rs"), secret_table(&carriers)?)?;
    // Comments are for the Rust documentation only: leave them out of the
    // descriptors that end up in the binary. These are encoded by protox and
    // not by prost, which would drop the options it does not know.
    write(
        &out_dir.join("descriptors.bin"),
        compile(false)?.encode_file_descriptor_set(),
    )
}

fn compile(with_comments: bool) -> anyhow::Result<protox::Compiler> {
    let mut compiler = protox::Compiler::new([PROTO_DIR])?;
    compiler
        .include_imports(true)
        .include_source_info(with_comments)
        .open_files(PROTO_FILES)
        .with_context(|| format!("compiling {PROTO_FILES:?} in {PROTO_DIR}"))?;
    Ok(compiler)
}

fn write(path: &Path, content: impl AsRef<[u8]>) -> anyhow::Result<()> {
    fs::write(path, content).with_context(|| format!("writing {}", path.display()))
}

/// A message with secrets among its fields.
struct Carrier {
    message: MessageDescriptor,
    secret: Vec<FieldDescriptor>,
}

/// All messages with secrets, by their full name.
fn secret_carriers(pool: &DescriptorPool) -> anyhow::Result<BTreeMap<String, Carrier>> {
    let (name, number) = SECRET_OPTION;
    let option = pool
        .get_extension_by_name(name)
        .with_context(|| format!("no option {name}"))?;
    ensure!(
        option.number() == number,
        "option {name} is {}, not {number}",
        option.number()
    );

    let mut carriers = BTreeMap::new();
    for message in pool.all_messages() {
        let secret: Vec<_> = message
            .fields()
            .filter(|field| is_secret(field, &option))
            .collect();
        if secret.is_empty() {
            continue;
        }
        // What the Debug written below would get wrong must stop the build:
        // a secret inside a oneof is printed by the oneof's own Debug.
        if message.oneofs().len() > 0 {
            bail!(
                "{} has a secret and a oneof: give its Debug that case",
                message.full_name()
            );
        }
        let is_in_package = SECRET_PACKAGES
            .iter()
            .any(|(package, _)| *package == message.package_name());
        if !is_in_package || message.parent_message().is_some() {
            bail!(
                "{} has a secret but is not top level in one of {SECRET_PACKAGES:?}",
                message.full_name()
            );
        }
        carriers.insert(message.full_name().to_owned(), Carrier { message, secret });
    }
    ensure!(!carriers.is_empty(), "no field is marked with {name}");
    Ok(carriers)
}

fn is_secret(field: &FieldDescriptor, option: &ExtensionDescriptor) -> bool {
    field.options().get_extension(option).as_bool() == Some(true)
}

/// `Debug` for the messages of a package with secrets: a derived one, but for the secrets.
fn debug_impls(package: &str, carriers: &BTreeMap<String, Carrier>) -> anyhow::Result<String> {
    let mut code = String::new();
    for Carrier { message, secret } in carriers.values() {
        if message.package_name() != package {
            continue;
        }
        let name = message.name();
        writeln!(code, "impl ::core::fmt::Debug for {name} {{")?;
        writeln!(
            code,
            "fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {{"
        )?;
        writeln!(code, "f.debug_struct({name:?})")?;
        for field in message.fields() {
            let name = field.name();
            if !secret.contains(&field) {
                writeln!(code, ".field({name:?}, &self.{name})")?;
            } else if field.is_map() || field.is_list() {
                let shown = format!("format_args!(\"[redacted; {{}}]\", self.{name}.len())");
                writeln!(code, ".field({name:?}, &{shown})")?;
            } else {
                writeln!(code, ".field({name:?}, &format_args!(\"[redacted]\"))")?;
            }
        }
        writeln!(code, ".finish()\n}}\n}}")?;
    }
    Ok(code)
}

/// The expression that `SECRET_FIELDS` is set to.
fn secret_table(carriers: &BTreeMap<String, Carrier>) -> anyhow::Result<String> {
    let mut code = String::from("&[\n");
    for Carrier { message, secret } in carriers.values() {
        for field in secret {
            writeln!(code, "({:?}, {:?}),", message.full_name(), field.name())?;
        }
    }
    code.push(']');
    Ok(code)
}
