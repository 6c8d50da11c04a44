"""Recordings: made, converted and understood. Nobody speaks here: each word is a tone, a quarter of a second long."""

from __future__ import annotations

import io
import math
import shutil
import subprocess
import wave
from array import array
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

WORDS: tuple[str, ...] = ("hello", "thanks", "price", "contract", "problem", "refund", "great", "goodbye")
LOWEST, APART = 300, 100
"""Hertz: of the first word, and from each to the next."""
TONE, PAUSE = 0.2, 0.05
UPLOADED, EXTRACTED, SENT = 48_000, 16_000, 8_000
"""Samples a second."""

FFMPEG = shutil.which("ffmpeg")
SPEECH = "speech.ogg" if FFMPEG else "speech.wav"
"""OGG Opus needs ffmpeg. Without it the speech service gets a small WAV."""


def record(words: Iterable[str]) -> bytes:
    """A stereo WAV in which these words are said."""
    samples = array("h")
    for word in words:
        turn = 2 * math.pi * (LOWEST + APART * WORDS.index(word)) / UPLOADED
        for n in range(int(TONE * UPLOADED)):
            samples.extend([int(12_000 * math.sin(turn * n))] * 2)
        samples.extend([0, 0] * int(PAUSE * UPLOADED))
    return as_wav(samples, UPLOADED, channels=2)


def to_mono(recording: bytes) -> bytes:
    """One channel of a third of the samples. What is no such WAV raises `wave.Error`."""
    samples, channels, rate = from_wav(recording)
    step = channels * (rate // EXTRACTED)
    left, right = samples[0::step], samples[channels - 1 :: step]
    return as_wav(array("h", ((a + b) // 2 for a, b in zip(left, right, strict=False))), EXTRACTED)


def to_speech(audio: Path) -> bytes:
    """What the speech service takes."""
    if FFMPEG:
        command = [FFMPEG, "-v", "error", "-i", str(audio), "-c:a", "libopus", "-b:a", "24k", "-f", "ogg", "-"]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
    samples, _, rate = from_wav(audio.read_bytes())
    return as_wav(samples[:: rate // SENT], SENT)


def understand(speech: bytes) -> list[str]:
    """The words, by how often the middle of each tone crosses zero."""
    if speech.startswith(b"OggS"):
        command = [FFMPEG or "ffmpeg", "-v", "error", "-i", "-", "-f", "s16le", "-ac", "1", "-ar", str(SENT), "-"]
        samples = array("h", subprocess.run(command, input=speech, capture_output=True, check=True).stdout)
    else:
        samples, _, _ = from_wav(speech)
    word, middle = int((TONE + PAUSE) * SENT), int(TONE / 4 * SENT)
    words = []
    for start in range(0, len(samples) - word + 1, word):
        heard = samples[start + middle : start + 3 * middle]
        crossings = sum((a < 0) != (b < 0) for a, b in pairwise(heard))
        hertz = crossings / 2 / (len(heard) / SENT)
        words.append(WORDS[round((hertz - LOWEST) / APART)])
    return words


def as_wav(samples: array[int], rate: int, channels: int = 1) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setnchannels(channels)
        wav.setsampwidth(2)
        wav.setframerate(rate)
        wav.writeframes(samples.tobytes())
    return file.getvalue()


def from_wav(data: bytes) -> tuple[array[int], int, int]:
    """Samples, channels, samples a second."""
    try:
        with wave.open(io.BytesIO(data)) as wav:
            if wav.getsampwidth() != 2:
                raise wave.Error(f"{8 * wav.getsampwidth()} bits a sample; we take 16")
            return array("h", wav.readframes(wav.getnframes())), wav.getnchannels(), wav.getframerate()
    except EOFError:
        raise wave.Error("this is no recording: it ends before it begins") from None
