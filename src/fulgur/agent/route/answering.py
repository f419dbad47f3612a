"""Which model answers in a session: one link, or with `model = "auto"` the pair to choose from."""

from __future__ import annotations

import contextlib

from fulgur.agent.route.models import ModelLink
from fulgur.agent.route.offers import offers
from fulgur.agent.route.relay import AUTO, Pair
from fulgur.agent.route.rules import Choice
from fulgur.agent.route.speeds import Speeds
from fulgur.config.settings import Settings
from fulgur.errors import FulgurError
from fulgur.protocol.agent import UsageReported
from fulgur.protocol.session import ModelOffer


class Answering:
    """`link` is the current model, or the one that worked last."""

    def __init__(self, settings: Settings, link: ModelLink, pair: Pair | None = None) -> None:
        self.link = link
        self.pair = pair
        self._settings = settings
        self._speeds = Speeds(settings.home)

    @classmethod
    async def open(cls, settings: Settings) -> Answering:
        """Connect to the model of the settings."""
        if settings.model != AUTO:
            return cls(settings, await ModelLink.open(settings))
        pair = Pair(settings)
        return cls(settings, await pair.link("fast"), pair)

    async def change(self, settings: Settings) -> None:
        """Switch the model or provider; if that fails, the current link stays."""
        same = self.pair is None and settings.model != AUTO and settings.provider == self._settings.provider
        if same and not self.link.outdated:
            self.link = await self.link.beside(settings)
        else:
            other = await Answering.open(settings)
            await self.close()
            self.link, self.pair = other.link, other.pair
        self._settings = settings

    async def choose(self, text: str, context_used: int) -> Choice | None:
        """With `model = "auto"`, choose who works on the prompt; `link` is that model's from here on."""
        if self.pair is None:
            return None
        choice = self.pair.decide(text, context_used)
        self.link = await self.pair.link(choice.side)
        return choice

    async def look_again(self) -> None:
        """Look for the server after the connection was lost for good; if none answers, the next request fails and says
        why."""
        with contextlib.suppress(FulgurError):
            await self.link.reopen()

    async def offers(self, settings: Settings) -> list[ModelOffer]:
        """Every model that could answer."""
        return await offers(settings, self.link)

    def note_speed(self, link: ModelLink, usage: UsageReported) -> None:
        """Record how fast an answer was, for the list of models."""
        rate = usage.raw_tokens_per_second or usage.tokens_per_second
        self._speeds.note(f"{link.settings.provider.id}:{usage.model}", usage.output_tokens, rate)

    async def close(self) -> None:
        """Close the connections."""
        if self.pair is not None:
            await self.pair.close()
        else:
            await self.link.connection.close()
