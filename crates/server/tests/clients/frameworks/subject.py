"""What the scripts of this folder ask for: an object of a closed form, and a tool that takes one."""

import pathlib
import sys
from typing import Literal

from pydantic import BaseModel, Field

# `common.py` is for all scripts, a folder above.
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))


class Ball(BaseModel):
    """A ball: small enough that every text of it ends."""

    colour: Literal["red", "green", "blue"]
    size: int = Field(ge=0, le=9)
    new: bool


QUESTION = "Tom has a ball. It is red and new. What is the ball like?"
