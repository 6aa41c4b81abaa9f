use super::*;

#[test]
fn sizes() {
    let good: [(&str, u64); 17] = [
        ("0", 0),
        ("4096", 4096),
        ("1Ki", 1024),
        ("1k", 1000),
        ("500M", 500_000_000),
        ("20Gi", 20 << 30),
        ("1.5Gi", 3 << 29),
        ("0.1k", 100),
        ("1.0001k", 1001), // up, as Kubernetes rounds
        ("1Ti", 1 << 40),
        ("7Ei", 7 << 60),
        ("1e3", 1000),
        ("1.", 1),
        (".5Gi", 1 << 29),
        ("+1", 1),
        ("1.1234567890123456789Gi", 1_206_302_542),
        ("9223372036854775807", i64::MAX as u64),
    ];
    for (word, bytes) in good {
        assert_eq!(size(word), Ok(bytes), "{word}");
    }
    let wrong = "Gi|1gi|1 Gi|-1|1Gib|1.2.3|0x10|８|8Ei|9223372036854775808|\
        99999999999999999999999999999999999999999|5%|1m|1000u|1n|-0|-0.5|-.9|1e-3|500e-3|";
    // The last word is empty.
    for word in wrong.split('|') {
        assert!(size(word).is_err(), "{word}");
    }
}

fn spec(name: &str, path: &str) -> PoolSpec {
    PoolSpec {
        name: name.into(),
        path: path.into(),
        image_bytes: None,
        preallocate: false,
        wipe: false,
        capacity_bytes: None,
        inline: false,
    }
}

#[test]
fn pools() {
    assert_eq!(
        "default=/srv/pool".parse(),
        Ok(spec("default", "/srv/pool"))
    );
    assert_eq!("d=/srv//pool/./x/".parse(), Ok(spec("d", "/srv/pool/x")));
    assert_eq!("a.b-c_1=/dev/sdb".parse(), Ok(spec("a.b-c_1", "/dev/sdb")));
    let image = PoolSpec {
        image_bytes: Some(20 << 30),
        preallocate: true,
        capacity_bytes: Some(10_000_000_000),
        inline: true,
        ..spec("fast", "/var/lib/x")
    };
    let text = "fast=/var/lib/x,image=20Gi,preallocate,inline,capacity=10G";
    assert_eq!(text.parse(), Ok(image));
    let wiped = PoolSpec {
        wipe: true,
        ..spec("d", "/dev/sdb")
    };
    assert_eq!("d=/dev/sdb,wipe".parse(), Ok(wiped));
    let rounded: PoolSpec = "x=/x,image=314572801".parse().unwrap();
    assert_eq!(rounded.image_bytes, Some(314_572_800 + 4096));
}

#[test]
fn refused_pools_say_why() {
    let table = [
        ("", "NAME=PATH"),
        ("/srv/pool", "NAME=PATH"),
        ("=/srv/pool", "not a pool name"),
        ("../x=/srv", "not a pool name"),
        (".x=/srv", "not a pool name"),
        ("a/b=/srv", "not a pool name"),
        ("x=srv", "absolute"),
        ("x=", "absolute"),
        ("x=/srv/../etc", "absolute"),
        ("x=/srv,image", "not an option"),
        ("x=/srv,size=3Gi", "not an option"),
        ("x=/srv,", "not an option"),
        ("x=/srv,image=1Mi", "too small"),
        ("x=/srv,image=large", "not a size"),
        ("x=/srv,preallocate", "image=SIZE"),
        ("x=/srv,image=1Gi,wipe", "block device"),
        ("x=/dev/sdb,wipe,wipe", "twice"),
        ("x=/srv,capacity=1Gi,capacity=2Gi", "twice"),
        ("x=/srv,image=1Gi,image=2Gi", "twice"),
        ("x=/srv,inline,inline", "twice"),
        ("x=/srv,inline=true", "not an option"),
    ];
    for (text, why) in table {
        let error = text.parse::<PoolSpec>().unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}
