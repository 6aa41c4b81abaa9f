//! What makes kubelet's calls acceptable to an HTTP/2 server that reads its headers strictly.
//!
//! Kubelet sends the socket's path, percent-encoded, as `:authority`. An authority may not contain
//! that, and the server here resets such a stream before any of our code sees it. So the bytes are
//! put right on their way in: the value is overwritten, in place and at the same length, by a name
//! that is valid and says nothing. Nothing here depends on the authority.
//!
//! The cure follows HTTP/2 framing (RFC 9113) and HPACK (RFC 7541) only as far as it must to find
//! that value: literals are skipped by their length, nothing is decoded and nothing kept. What it
//! can't follow it leaves as it is from there on, for the server to judge.
//!
//! A literal may at the same time be an entry of the peer's dynamic table, to which later fields
//! refer by number. They then mean the overwritten value, on every stream alike. The numbers hold:
//! they count from the newest entry, and the server's table, whose entry is never larger than the
//! peer's (Huffman coding is used where it is shorter), drops old entries no sooner than the peer's.

/// What each connection starts with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The largest frame a peer may send to a server that has not asked for larger ones. A longer one
/// is no frame, or will be refused.
pub(super) const MAX_FRAME: u32 = 16 << 10;

/// The static table's entry `:authority`.
const AUTHORITY: u32 = 1;

/// What the value is made of. Any number of these is a valid host.
const HARMLESS: u8 = b'x';

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
const PRIORITY_LENGTH: u32 = 5;

/// Follows what one client sends, and overwrites its authorities.
#[derive(Debug, Default)]
pub(super) struct Cure {
    place: Place,
    /// The header block that is not complete, if any: its stream, and where in it we are.
    block: Option<(u32, Field)>,
}

/// Where in the connection the next byte is.
#[derive(Debug)]
enum Place {
    /// This many bytes of the preface are past.
    Preface(usize),
    /// In a frame's header, of which this much is past.
    Header([u8; 9], usize),
    /// At the number of padding bytes.
    PadLength(Frame),
    /// In the payload.
    Payload(Frame),
    /// Somewhere that can't be followed.
    Lost,
}

impl Default for Place {
    fn default() -> Self {
        Place::Preface(0)
    }
}

/// What is left of a frame's payload, in the order in which it comes.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    /// Bytes about priority, which precede the fragment.
    priority: u32,
    /// Bytes of a header block.
    fragment: u32,
    /// Other bytes: padding, or all of a frame that has no headers.
    rest: u32,
    /// The header block is complete after this frame.
    ends_block: bool,
}

/// Where in a header block the next byte is.
#[derive(Clone, Copy, Debug)]
enum Field {
    /// At the start of a field.
    Start,
    /// In the number of a field that has nothing else.
    Number(Integer),
    /// In the number of a literal's name.
    Name(Integer),
    /// At the length of a string.
    Length(Text),
    /// In it.
    LengthGoesOn(Text, Integer),
    /// In the string, with this many bytes to come.
    String(Text, u32),
}

/// Which string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    /// A name that is not in the tables; a value follows.
    Name,
    /// The value we look for.
    Authority,
    /// Another value.
    Value,
}

/// A number whose prefix was full.
#[derive(Clone, Copy, Debug)]
struct Integer {
    value: u32,
    shift: u32,
}

/// The block does not follow the rules, or goes beyond what is sane.
struct Senseless;

impl Cure {
    /// Takes the next bytes from the client, however they happen to be cut.
    pub(super) fn feed(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            if matches!(self.place, Place::Lost) {
                return;
            }
            *byte = self.step(*byte);
        }
    }

    /// Takes one byte and gives the one to pass on.
    fn step(&mut self, byte: u8) -> u8 {
        let mut passed = byte;
        self.place = match std::mem::replace(&mut self.place, Place::Lost) {
            Place::Preface(past) if PREFACE[past] != byte => Place::Lost,
            Place::Preface(past) if past + 1 < PREFACE.len() => Place::Preface(past + 1),
            Place::Preface(_) => Place::FRAME,
            Place::Header(mut header, past) => {
                header[past] = byte;
                if past + 1 < header.len() {
                    Place::Header(header, past + 1)
                } else {
                    self.begin(&header)
                }
            }
            Place::PadLength(frame) => self.pad(frame, u32::from(byte)),
            Place::Payload(frame) => match self.payload(frame, byte) {
                Ok((byte, place)) => {
                    passed = byte;
                    place
                }
                Err(Senseless) => Place::Lost,
            },
            Place::Lost => Place::Lost,
        };
        passed
    }

    /// Begins the frame that has this header.
    fn begin(&mut self, header: &[u8; 9]) -> Place {
        let [a, b, c, kind, flags, stream @ ..] = *header;
        let length = u32::from_be_bytes([0, a, b, c]);
        // The highest bit is reserved and means nothing.
        let stream = u32::from_be_bytes(stream) & 0x7fff_ffff;
        if length > MAX_FRAME {
            return Place::Lost;
        }
        // A block that has begun goes on in the next frame, whatever else there is to send.
        let field = match (kind, self.block.take()) {
            (HEADERS, None) => Field::Start,
            (CONTINUATION, Some((begun, field))) if begun == stream => field,
            (CONTINUATION, None) | (_, Some(_)) => return Place::Lost,
            (_, None) => {
                return self.go_on(Frame {
                    rest: length,
                    ..Frame::default()
                });
            }
        };
        self.block = Some((stream, field));
        let mut frame = Frame {
            fragment: length,
            ends_block: flags & END_HEADERS != 0,
            ..Frame::default()
        };
        if kind == HEADERS && flags & PRIORITY != 0 {
            frame.priority = PRIORITY_LENGTH;
        }
        if kind == HEADERS && flags & PADDED != 0 {
            return if length == 0 {
                Place::Lost
            } else {
                Place::PadLength(frame)
            };
        }
        self.divide(frame, 0)
    }

    /// Goes on after the number of padding bytes, which is itself part of the payload.
    fn pad(&mut self, mut frame: Frame, padding: u32) -> Place {
        frame.fragment -= 1;
        self.divide(frame, padding)
    }

    /// Takes what is not of the header block out of the fragment.
    fn divide(&mut self, mut frame: Frame, padding: u32) -> Place {
        match frame.fragment.checked_sub(frame.priority + padding) {
            Some(fragment) => {
                frame.fragment = fragment;
                frame.rest = padding;
                self.go_on(frame)
            }
            None => Place::Lost,
        }
    }

    /// Takes a byte of the payload.
    fn payload(&mut self, mut frame: Frame, byte: u8) -> Result<(u8, Place), Senseless> {
        let mut passed = byte;
        if frame.priority > 0 {
            frame.priority -= 1;
        } else if frame.fragment > 0 {
            frame.fragment -= 1;
            if let Some((_, field)) = &mut self.block {
                (passed, *field) = field.step(byte)?;
            }
        } else {
            frame.rest -= 1;
        }
        Ok((passed, self.go_on(frame)))
    }

    /// The place after what has been taken of this frame.
    fn go_on(&mut self, frame: Frame) -> Place {
        if frame.priority + frame.fragment + frame.rest > 0 {
            return Place::Payload(frame);
        }
        if frame.ends_block {
            self.block = None;
        }
        Place::FRAME
    }
}

impl Place {
    /// Before a frame.
    const FRAME: Place = Place::Header([0; 9], 0);
}

impl Field {
    /// Takes one byte of a block, and gives the one to pass on and what comes next.
    fn step(self, byte: u8) -> Result<(u8, Field), Senseless> {
        let next = match self {
            Field::Start => Field::start(byte),
            Field::Number(number) => match number.step(byte)? {
                (_, true) => Field::Start,
                (number, false) => Field::Number(number),
            },
            Field::Name(number) => match number.step(byte)? {
                (number, true) => Field::named(number.value),
                (number, false) => Field::Name(number),
            },
            Field::Length(text) => return Ok(Field::length(text, byte)),
            Field::LengthGoesOn(text, number) => match number.step(byte)? {
                (number, true) => Field::string(text, number.value),
                (number, false) => Field::LengthGoesOn(text, number),
            },
            Field::String(text, left) => {
                let passed = if text == Text::Authority {
                    HARMLESS
                } else {
                    byte
                };
                return Ok((passed, Field::string(text, left - 1)));
            }
        };
        Ok((byte, next))
    }

    /// What follows the first byte of a field.
    fn start(byte: u8) -> Field {
        // Indexed; literal that becomes an entry of the table; change of the table's size; literal
        // that does not become an entry, or never may.
        let (bits, literal) = match byte {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        match (Integer::prefix(byte, bits), literal) {
            (Ok(_), false) => Field::Start,
            (Err(number), false) => Field::Number(number),
            (Ok(index), true) => Field::named(index),
            (Err(number), true) => Field::Name(number),
        }
    }

    /// What follows the number of a literal's name.
    fn named(index: u32) -> Field {
        Field::Length(match index {
            0 => Text::Name,
            AUTHORITY => Text::Authority,
            _ => Text::Value,
        })
    }

    /// A string's first byte: whether it is in Huffman code, and how long it is.
    fn length(text: Text, byte: u8) -> (u8, Field) {
        let next = match Integer::prefix(byte, 7) {
            Ok(length) => Field::string(text, length),
            Err(number) => Field::LengthGoesOn(text, number),
        };
        // What is written over it is in no code.
        let passed = if text == Text::Authority {
            byte & 0x7f
        } else {
            byte
        };
        (passed, next)
    }

    /// What follows a string's length, or one of its bytes.
    fn string(text: Text, left: u32) -> Field {
        match (text, left) {
            (Text::Name, 0) => Field::Length(Text::Value),
            (_, 0) => Field::Start,
            _ => Field::String(text, left),
        }
    }
}

impl Integer {
    /// Reads a number's first byte, in whose lower bits it is, unless it does not fit.
    fn prefix(byte: u8, bits: u32) -> Result<u32, Integer> {
        let full = (1 << bits) - 1;
        let value = u32::from(byte) & full;
        if value < full {
            Ok(value)
        } else {
            Err(Integer { value, shift: 0 })
        }
    }

    /// Reads one more byte of it. True if that was the last one.
    fn step(self, byte: u8) -> Result<(Integer, bool), Senseless> {
        // No number here can sensibly need more bits.
        if self.shift > 21 {
            return Err(Senseless);
        }
        let value = self.value + (u32::from(byte & 0x7f) << self.shift);
        let shift = self.shift + 7;
        Ok((Integer { value, shift }, byte & 0x80 == 0))
    }
}

#[cfg(test)]
mod tests;
