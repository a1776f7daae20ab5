//! Programs to write and to change: what the workloads `code` and `rename` ask for.

/// Functions to write: a signature and what it does, with examples.
pub(super) const FUNCTIONS: [&str; 8] = [
    r#"def running_total(amounts: list[int]) -> list[int]:
    """Return a list of the same length in which every place has the sum of all amounts up to it.

    >>> running_total([1, 2, 3])
    [1, 3, 6]
    >>> running_total([])
    []
    """
"#,
    r#"def longest_word(text: str) -> str:
    """Return the longest word of a text; of several that are equally long, the first.
    Words are separated by spaces and have no punctuation.

    >>> longest_word("the quick fox")
    'quick'
    >>> longest_word("")
    ''
    """
"#,
    r#"def rotate(items: list, steps: int) -> list:
    """Rotate a list to the right. A negative number of steps rotates it to the left.

    >>> rotate([1, 2, 3, 4], 1)
    [4, 1, 2, 3]
    >>> rotate([1, 2, 3, 4], -1)
    [2, 3, 4, 1]
    """
"#,
    r#"def is_balanced(text: str) -> bool:
    """Tell whether every bracket of a text is closed by one of its kind, in the right order.
    Brackets are (), [] and {}; everything else is ignored.

    >>> is_balanced("f(a[1], {2})")
    True
    >>> is_balanced("(]")
    False
    """
"#,
    r#"def count_vowels(text: str) -> dict[str, int]:
    """Count how often each of the vowels a, e, i, o and u occurs, in lower or upper case.
    Vowels that do not occur are left out.

    >>> count_vowels("Banana")
    {'a': 3}
    """
"#,
    r#"def merge_intervals(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge all intervals that touch or overlap, and return them in order of their start.

    >>> merge_intervals([(5, 8), (1, 3), (2, 4)])
    [(1, 4), (5, 8)]
    """
"#,
    r#"def to_roman(number: int) -> str:
    """Write a number from 1 to 3999 in Roman numerals.

    >>> to_roman(14)
    'XIV'
    >>> to_roman(1990)
    'MCMXC'
    """
"#,
    r#"def transpose(rows: list[list[float]]) -> list[list[float]]:
    """Swap rows and columns of a matrix. All rows have the same length.

    >>> transpose([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    [[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]
    """
"#,
];

/// A program to repeat with a name changed.
pub(super) struct Rename {
    program: &'static str,
    from: &'static str,
    to: &'static str,
}

impl Rename {
    /// What a user would ask for.
    pub(super) fn question(&self) -> String {
        let Self { program, from, to } = self;
        format!(
            "Rename `{from}` to `{to}` in this program. Repeat the whole program, and change nothing else.\n\n\
             ```python\n{program}```"
        )
    }
}

pub(super) const RENAMES: [Rename; 4] = [
    Rename {
        from: "stock",
        to: "inventory",
        program: r#"class Shop:
    """A shop that sells what it has."""

    def __init__(self, name):
        self.name = name
        self.stock = {}
        self.earned = 0.0

    def deliver(self, item, count):
        self.stock[item] = self.stock.get(item, 0) + count

    def sell(self, item, price):
        if self.stock.get(item, 0) == 0:
            raise KeyError(f"{self.name} has no {item}")
        self.stock[item] -= 1
        self.earned += price
        return self.stock[item]

    def report(self):
        for item, count in sorted(self.stock.items()):
            print(f"{item}: {count}")
        print(f"earned: {self.earned:.2f}")
"#,
    },
    Rename {
        from: "rows",
        to: "lines",
        program: r#"import csv


def read_table(path):
    with open(path, newline="") as file:
        rows = list(csv.reader(file))
    header, rows = rows[0], rows[1:]
    return [dict(zip(header, row)) for row in rows]


def column(rows, name):
    return [float(row[name]) for row in rows]


def summary(rows, name):
    values = column(rows, name)
    mean = sum(values) / len(values)
    spread = sum((value - mean) ** 2 for value in values) / len(values)
    return {"count": len(rows), "mean": mean, "deviation": spread ** 0.5}
"#,
    },
    Rename {
        from: "previous",
        to: "parents",
        program: r"from collections import deque


def shortest_path(graph, start, goal):
    previous = {start: None}
    queue = deque([start])

    def visit(node, neighbour):
        if neighbour in previous:
            return False
        previous[neighbour] = node
        queue.append(neighbour)
        return neighbour == goal

    while queue:
        node = queue.popleft()
        for neighbour in graph[node]:
            if visit(node, neighbour):
                return walk_back(previous, goal)
    return None


def walk_back(previous, node):
    path = []
    while node is not None:
        path.append(node)
        node = previous[node]
    return path[::-1]
",
    },
    Rename {
        from: "score",
        to: "points",
        program: r#"import random


class Player:
    def __init__(self, name):
        self.name = name
        self.score = 0

    def throw(self):
        first, second = random.randint(1, 6), random.randint(1, 6)
        if first == second:
            self.score += 2 * (first + second)
        else:
            self.score += first + second


def play(players, target):
    while True:
        for player in players:
            player.throw()
            print(f"{player.name} has {player.score}")
            if player.score >= target:
                return player
"#,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_the_name_that_is_to_be_changed_and_not_the_new_one() {
        for Rename { program, from, to } in &RENAMES {
            assert!(program.matches(from).count() > 2, "{from}");
            assert!(!program.contains(to), "{to}");
        }
    }

    #[test]
    fn functions_have_examples_and_no_body() {
        for function in FUNCTIONS {
            assert!(
                function.starts_with("def ") && function.contains("    >>> "),
                "{function}"
            );
            assert!(function.ends_with("    \"\"\"\n"), "{function}");
        }
    }
}
