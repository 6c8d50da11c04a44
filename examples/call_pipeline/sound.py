"""Makes, converts and decodes recordings. There is no speech in them: each word is a tone of a quarter of a second."""

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
"""Hertz: the tone of the first word, and the distance between two tones."""
TONE, PAUSE = 0.2, 0.05
UPLOADED, EXTRACTED, SENT = 48_000, 16_000, 8_000
"""Samples per second."""

FFMPEG = shutil.which("ffmpeg")
SPEECH = "speech.ogg" if FFMPEG else "speech.wav"
"""OGG Opus needs ffmpeg. Without ffmpeg, the speech service gets a small WAV."""


def record(words: Iterable[str]) -> bytes:
    """A stereo WAV with a tone for each word."""
    samples = array("h")
    for word in words:
        turn = 2 * math.pi * (LOWEST + APART * WORDS.index(word)) / UPLOADED
        for n in range(int(TONE * UPLOADED)):
            samples.extend([int(12_000 * math.sin(turn * n))] * 2)
        samples.extend([0, 0] * int(PAUSE * UPLOADED))
    return as_wav(samples, UPLOADED, channels=2)


def to_mono(recording: bytes) -> bytes:
    """One channel with a third of the samples. Raises `wave.Error` if this is not such a WAV."""
    samples, channels, rate = from_wav(recording)
    step = channels * (rate // EXTRACTED)
    left, right = samples[0::step], samples[channels - 1 :: step]
    return as_wav(array("h", ((a + b) // 2 for a, b in zip(left, right, strict=False))), EXTRACTED)


def to_speech(audio: Path) -> bytes:
    """The format that the speech service takes."""
    if FFMPEG:
        command = [FFMPEG, "-v", "error", "-i", str(audio), "-c:a", "libopus", "-b:a", "24k", "-f", "ogg", "-"]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
    samples, _, rate = from_wav(audio.read_bytes())
    return as_wav(samples[:: rate // SENT], SENT)


def understand(speech: bytes) -> list[str]:
    """Decode the words by counting the zero crossings in the middle of each tone."""
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
    """Samples, channels, samples per second."""
    try:
        with wave.open(io.BytesIO(data)) as wav:
            if wav.getsampwidth() != 2:
                raise wave.Error(f"{8 * wav.getsampwidth()} bits per sample; only 16 are supported")
            return array("h", wav.readframes(wav.getnframes())), wav.getnchannels(), wav.getframerate()
    except EOFError:
        raise wave.Error("this is not a recording: the file is too short") from None
