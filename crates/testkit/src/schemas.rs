//! JSON schemas of all kinds, small enough that a small model can finish what they describe.

use serde_json::{Map, Value, json};

/// A schema from a seed: objects in objects, lists, enumerations, bounds, optional properties, alternatives,
/// references.
pub fn random_schema(seed: u64) -> Value {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995);
    let mut schema = random.object(2);
    if random.below(4) == 0 {
        let leaf = random.leaf();
        schema["$defs"] = json!({ "shared": leaf });
        schema["properties"]["common"] = json!({ "$ref": "#/$defs/shared" });
    }
    schema
}

struct Random(u64);

const NAMES: [&str; 10] = [
    "name",
    "age",
    "kind",
    "tags",
    "size",
    "home",
    "is_good",
    "first friend",
    "naïve",
    "a/b",
];
const WORDS: [&str; 8] = [
    "red",
    "green",
    "big bad wolf",
    "ä",
    "x",
    "\"quoted\"",
    "",
    "back\\slash",
];

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn object(&mut self, depth: usize) -> Value {
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for _ in 0..=self.below(3) {
            let name = NAMES[self.below(NAMES.len())];
            let inner = self.schema(depth);
            if properties.insert(name.to_owned(), inner).is_none() && self.below(3) > 0 {
                required.push(name);
            }
        }
        json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        })
    }

    fn schema(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 1 } else { 5 }) {
            0 | 1 => self.leaf(),
            2 => self.object(depth - 1),
            3 => {
                let items = self.schema(depth - 1);
                let least = self.below(3);
                json!({"type": "array", "items": items, "minItems": least, "maxItems": least + self.below(2)})
            }
            _ => json!({"anyOf": [self.leaf(), {"type": "null"}]}),
        }
    }

    fn leaf(&mut self) -> Value {
        match self.below(8) {
            0 => json!({"type": "boolean"}),
            1 => {
                let low = self.below(300) as i64 - 150;
                let high = low + self.below(200) as i64;
                json!({"type": "integer", "minimum": low, "maximum": high})
            }
            2 => json!({"type": "number", "minimum": 0, "maximum": 1 + self.below(9)}),
            3 => {
                let from = self.below(WORDS.len() - 2);
                json!({"enum": WORDS[from..from + 2]})
            }
            4 => json!({"const": WORDS[self.below(WORDS.len())]}),
            5 => json!({"type": "string", "pattern": "^[A-Z][a-z]{1,6}$"}),
            6 => {
                let least = self.below(3);
                json!({"type": "string", "minLength": least, "maxLength": least + 1 + self.below(8)})
            }
            _ => json!({"type": ["integer", "null"], "minimum": 0, "maximum": 20}),
        }
    }
}
