//! Makes kubelet's calls acceptable to a strict HTTP/2 server.
//!
//! Kubelet sends the percent-encoded path of the socket as `:authority`. Percent-encoding is not
//! valid there, so the server resets the stream before any handler runs. The rewrite therefore
//! overwrites the value in the incoming bytes, in place and at the same length, with a valid and
//! meaningless name. Nothing here depends on the authority.
//!
//! The rewrite follows HTTP/2 framing (RFC 9113) and HPACK (RFC 7541) only as far as needed to find
//! the value. It skips literals by their length, decodes nothing and stores nothing. If it can't
//! follow the bytes, it passes everything from there on unchanged, and the server decides.
//!
//! A literal may also become an entry of the peer's dynamic table, to which later fields refer by
//! index. These fields then mean the overwritten value, on every stream. The indexes stay valid,
//! because they count from the newest entry. The server's table also drops old entries no sooner
//! than the peer's, because its entry is never larger. The peer uses Huffman coding only where that
//! is shorter.

/// The start of each connection.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The largest frame that a peer may send, unless the server allows more. A longer one is not a
/// frame, or will be rejected.
pub(super) const MAX_FRAME: u32 = 16 << 10;

/// The index of `:authority` in the static table.
const AUTHORITY: u32 = 1;

/// The letter that overwrites the value. Any number of these is a valid host.
const HARMLESS: u8 = b'x';

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
const PRIORITY_LENGTH: u32 = 5;

/// Follows the bytes of one client, and overwrites its authorities.
#[derive(Debug, Default)]
pub(super) struct AuthorityRewrite {
    place: Position,
    /// The unfinished header block, if any: its stream, and the position in it.
    block: Option<(u32, FieldPosition)>,
}

/// The position of the next byte in the connection.
#[derive(Debug)]
enum Position {
    /// In the preface, after this many bytes.
    Preface(usize),
    /// In a frame header, after this many bytes.
    Header([u8; 9], usize),
    /// At the length of the padding.
    PadLength(FrameRest),
    /// In the payload of a frame.
    Payload(FrameRest),
    /// At bytes that can't be followed.
    Lost,
}

impl Default for Position {
    fn default() -> Self {
        Position::Preface(0)
    }
}

/// The rest of a frame's payload, in the order of its parts.
#[derive(Clone, Copy, Debug, Default)]
struct FrameRest {
    /// Bytes of priority, before the fragment.
    priority: u32,
    /// Bytes of the header block fragment.
    fragment: u32,
    /// Other bytes: padding, or the whole payload of a frame without headers.
    rest: u32,
    /// True if the header block ends with this frame.
    ends_block: bool,
}

/// The position of the next byte in a header block.
#[derive(Clone, Copy, Debug)]
enum FieldPosition {
    /// At the start of a field.
    Start,
    /// In the integer of a field that has nothing else.
    Number(Integer),
    /// In the index of a literal's name.
    Name(Integer),
    /// At the length of a string.
    Length(Text),
    /// In the length of a string.
    LengthGoesOn(Text, Integer),
    /// In a string, before this many bytes.
    String(Text, u32),
}

/// The kind of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    /// A literal name; a value follows.
    Name,
    /// The value of `:authority`.
    Authority,
    /// Another value.
    Value,
}

/// An integer that does not fit into its prefix.
#[derive(Clone, Copy, Debug)]
struct Integer {
    value: u32,
    shift: u32,
}

/// The block is invalid, or its integers are unreasonably large.
struct Senseless;

impl AuthorityRewrite {
    /// Processes the next bytes from the client. They may be split anywhere.
    pub(super) fn feed(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            if matches!(self.place, Position::Lost) {
                return;
            }
            *byte = self.step(*byte);
        }
    }

    /// Processes one byte, and returns the byte to pass on.
    fn step(&mut self, byte: u8) -> u8 {
        let mut passed = byte;
        self.place = match std::mem::replace(&mut self.place, Position::Lost) {
            Position::Preface(past) if PREFACE[past] != byte => Position::Lost,
            Position::Preface(past) if past + 1 < PREFACE.len() => Position::Preface(past + 1),
            Position::Preface(_) => Position::FRAME,
            Position::Header(mut header, past) => {
                header[past] = byte;
                if past + 1 < header.len() {
                    Position::Header(header, past + 1)
                } else {
                    self.begin(&header)
                }
            }
            Position::PadLength(frame) => self.pad(frame, u32::from(byte)),
            Position::Payload(frame) => match self.payload(frame, byte) {
                Ok((byte, place)) => {
                    passed = byte;
                    place
                }
                Err(Senseless) => Position::Lost,
            },
            Position::Lost => Position::Lost,
        };
        passed
    }

    /// Begins the frame with this header.
    fn begin(&mut self, header: &[u8; 9]) -> Position {
        let [a, b, c, kind, flags, stream @ ..] = *header;
        let length = u32::from_be_bytes([0, a, b, c]);
        // The highest bit is reserved and ignored.
        let stream = u32::from_be_bytes(stream) & 0x7fff_ffff;
        if length > MAX_FRAME {
            return Position::Lost;
        }
        // A header block continues in the next frame: no other frame may come between.
        let field = match (kind, self.block.take()) {
            (HEADERS, None) => FieldPosition::Start,
            (CONTINUATION, Some((begun, field))) if begun == stream => field,
            (CONTINUATION, None) | (_, Some(_)) => return Position::Lost,
            (_, None) => {
                return self.go_on(FrameRest {
                    rest: length,
                    ..FrameRest::default()
                });
            }
        };
        self.block = Some((stream, field));
        let mut frame = FrameRest {
            fragment: length,
            ends_block: flags & END_HEADERS != 0,
            ..FrameRest::default()
        };
        if kind == HEADERS && flags & PRIORITY != 0 {
            frame.priority = PRIORITY_LENGTH;
        }
        if kind == HEADERS && flags & PADDED != 0 {
            return if length == 0 {
                Position::Lost
            } else {
                Position::PadLength(frame)
            };
        }
        self.divide(frame, 0)
    }

    /// Continues after the length of the padding, which is itself part of the payload.
    fn pad(&mut self, mut frame: FrameRest, padding: u32) -> Position {
        frame.fragment -= 1;
        self.divide(frame, padding)
    }

    /// Removes padding and priority from the length of the fragment.
    fn divide(&mut self, mut frame: FrameRest, padding: u32) -> Position {
        match frame.fragment.checked_sub(frame.priority + padding) {
            Some(fragment) => {
                frame.fragment = fragment;
                frame.rest = padding;
                self.go_on(frame)
            }
            None => Position::Lost,
        }
    }

    /// Processes one byte of the payload.
    fn payload(&mut self, mut frame: FrameRest, byte: u8) -> Result<(u8, Position), Senseless> {
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

    /// Returns the place that follows the bytes processed so far.
    fn go_on(&mut self, frame: FrameRest) -> Position {
        if frame.priority + frame.fragment + frame.rest > 0 {
            return Position::Payload(frame);
        }
        if frame.ends_block {
            self.block = None;
        }
        Position::FRAME
    }
}

impl Position {
    /// At the start of a frame.
    const FRAME: Position = Position::Header([0; 9], 0);
}

impl FieldPosition {
    /// Processes one byte of a header block. Returns the byte to pass on, and the next position.
    fn step(self, byte: u8) -> Result<(u8, FieldPosition), Senseless> {
        let next = match self {
            FieldPosition::Start => FieldPosition::start(byte),
            FieldPosition::Number(number) => match number.step(byte)? {
                (_, true) => FieldPosition::Start,
                (number, false) => FieldPosition::Number(number),
            },
            FieldPosition::Name(number) => match number.step(byte)? {
                (number, true) => FieldPosition::named(number.value),
                (number, false) => FieldPosition::Name(number),
            },
            FieldPosition::Length(text) => return Ok(FieldPosition::length(text, byte)),
            FieldPosition::LengthGoesOn(text, number) => match number.step(byte)? {
                (number, true) => FieldPosition::string(text, number.value),
                (number, false) => FieldPosition::LengthGoesOn(text, number),
            },
            FieldPosition::String(text, left) => {
                let passed = if text == Text::Authority {
                    HARMLESS
                } else {
                    byte
                };
                return Ok((passed, FieldPosition::string(text, left - 1)));
            }
        };
        Ok((byte, next))
    }

    /// Returns the position after the first byte of a field.
    fn start(byte: u8) -> FieldPosition {
        // The cases in order: indexed field; literal that enters the table; change of the table's
        // size; literal that does not enter the table, or never may.
        let (bits, literal) = match byte {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        match (Integer::prefix(byte, bits), literal) {
            (Ok(_), false) => FieldPosition::Start,
            (Err(number), false) => FieldPosition::Number(number),
            (Ok(index), true) => FieldPosition::named(index),
            (Err(number), true) => FieldPosition::Name(number),
        }
    }

    /// Returns the position after the index of a literal's name.
    fn named(index: u32) -> FieldPosition {
        FieldPosition::Length(match index {
            0 => Text::Name,
            AUTHORITY => Text::Authority,
            _ => Text::Value,
        })
    }

    /// Processes the first byte of a string: its Huffman flag and its length.
    fn length(text: Text, byte: u8) -> (u8, FieldPosition) {
        let next = match Integer::prefix(byte, 7) {
            Ok(length) => FieldPosition::string(text, length),
            Err(number) => FieldPosition::LengthGoesOn(text, number),
        };
        // The overwritten value is not Huffman-coded.
        let passed = if text == Text::Authority {
            byte & 0x7f
        } else {
            byte
        };
        (passed, next)
    }

    /// Returns the position after a string's length, or after one of its bytes.
    fn string(text: Text, left: u32) -> FieldPosition {
        match (text, left) {
            (Text::Name, 0) => FieldPosition::Length(Text::Value),
            (_, 0) => FieldPosition::Start,
            _ => FieldPosition::String(text, left),
        }
    }
}

impl Integer {
    /// Reads an integer's prefix from the lower bits of its first byte. An error if it continues.
    fn prefix(byte: u8, bits: u32) -> Result<u32, Integer> {
        let full = (1 << bits) - 1;
        let value = u32::from(byte) & full;
        if value < full {
            Ok(value)
        } else {
            Err(Integer { value, shift: 0 })
        }
    }

    /// Reads one more byte of the integer. True if it was the last one.
    fn step(self, byte: u8) -> Result<(Integer, bool), Senseless> {
        // Valid integers here never need more bits.
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
