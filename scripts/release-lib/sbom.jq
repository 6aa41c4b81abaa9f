# Makes a list of an image's software in the format SPDX 2.3. Part of scripts/release.
#
# Input: the output of `cargo metadata`. Arguments: crates, debian and sums have lines of words
# ("NAME VERSION", "NAME VERSION SHA256 SOURCE", "NAME VERSION SHA256"); the rest are texts.

def lines($text): $text | split("\n") | map(select(. != "") | split(" "));
# Only these characters may be in an identifier.
def id: "SPDXRef-" + gsub("[^A-Za-z0-9.-]"; "-");
def purl($type; $value):
  [{referenceCategory: "PACKAGE-MANAGER", referenceType: "purl",
    referenceLocator: "pkg:\($type)/\($value)"}];
def sum($value): if $value then [{algorithm: "SHA256", checksumValue: $value}] else [] end;
def package($id; $name; $version; $licence; $purl; $sums):
  {SPDXID: $id, name: $name, versionInfo: $version, downloadLocation: "NOASSERTION",
   filesAnalyzed: false, licenseConcluded: "NOASSERTION", licenseDeclared: $licence,
   copyrightText: "NOASSERTION", externalRefs: $purl}
  + (if $sums == [] then {} else {checksums: $sums} end);

. as $metadata
| (lines($crates) | map({key: join(" "), value: true}) | from_entries) as $in_program
| (lines($sums) | map({key: "\(.[0]) \(.[1])", value: .[2]}) | from_entries) as $sum_of
| [$metadata.packages[] | select($in_program["\(.name) \(.version)"])
   | . + {key: "\(.name) \(.version)"}] as $crates
| ($crates | map({key: .id, value: ("crate-\(.name)-\(.version)" | id)}) | from_entries) as $id_of
| (lines($debian)) as $debian
| {
  spdxVersion: "SPDX-2.3",
  dataLicense: "CC0-1.0",
  SPDXID: "SPDXRef-DOCUMENT",
  name: "hostloop-\($version)-linux-\($arch)",
  documentNamespace: "https://hostloop.csi.dev/spdx/\($version)/linux-\($arch)/\($digest)",
  creationInfo: {created: $created, creators: ["Tool: hostloop-scripts/release-\($version)"]},
  packages: (
    [package("SPDXRef-image"; $repository; $version; $licence;
       purl("oci"; "hostloop@sha256%3A\($digest)?arch=\($arch)&repository_url=\($repository | @uri)&tag=\($version)");
       sum($digest)) + {primaryPackagePurpose: "CONTAINER"}]
    + [package("SPDXRef-rust-std"; "std"; $rust; "MIT OR Apache-2.0"; purl("generic"; "rust-std@\($rust)"); [])]
    + [$crates[] | package($id_of[.id]; .name; .version;
         (.license // "NOASSERTION" | gsub(" */ *"; " OR "));
         (if .source then purl("cargo"; "\(.name)@\(.version | @uri)") else [] end);
         sum($sum_of[.key]))]
    + [$debian[] | . as [$name, $of, $sum, $source] | package("deb-\($name)" | id; $name; $of; "NOASSERTION";
         purl("deb"; "debian/\($name | @uri)@\($of | @uri)?arch=\($arch)&distro=\($distro)");
         sum($sum)) + {sourceInfo: "built from Debian's source package \($source)"}]
  ),
  relationships: (
    [{spdxElementId: "SPDXRef-DOCUMENT", relationshipType: "DESCRIBES", relatedSpdxElement: "SPDXRef-image"}]
    + [$crates[] | select(.name == "hostloop-driver")
       | ({spdxElementId: "SPDXRef-image", relationshipType: "CONTAINS", relatedSpdxElement: $id_of[.id]},
          {spdxElementId: $id_of[.id], relationshipType: "DEPENDS_ON", relatedSpdxElement: "SPDXRef-rust-std"})]
    + [$debian[] | {spdxElementId: "SPDXRef-image", relationshipType: "CONTAINS",
        relatedSpdxElement: ("deb-\(.[0])" | id)}]
    + [$metadata.resolve.nodes[] | select($id_of[.id]) | . as $node | .deps[]
       | select($id_of[.pkg] and any(.dep_kinds[]; .kind == null))
       | {spdxElementId: $id_of[$node.id], relationshipType: "DEPENDS_ON", relatedSpdxElement: $id_of[.pkg]}]
  ),
}
