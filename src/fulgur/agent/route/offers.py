"""The models that could answer: the provider's, the embedded ones, those on this machine, and APIs with a key set.

To build the list, nothing outside this machine is contacted except the chosen provider.
"""

from __future__ import annotations

from fulgur.agent.route.models import ModelLink, model_info
from fulgur.agent.route.relay import AUTO
from fulgur.agent.route.speeds import Speeds
from fulgur.client.discover import discover
from fulgur.config.known import KNOWN, ON_THIS_MACHINE, with_key_set
from fulgur.config.settings import Settings
from fulgur.protocol.session import ModelOffer
from fulgur.workspace.folders import embedded_models, embedded_name

EDITS_ONLY = "edits only"  # how such a model's note ends


async def offers(settings: Settings, link: ModelLink | None) -> list[ModelOffer]:
    """List everything that `/model` can choose, the chosen provider's models first; without a link, none of that
    provider."""
    chosen, speeds = settings.provider.id, Speeds(settings.home).all()
    found = []
    for entry in await link.connection.models() if link is not None else ():
        info = model_info(entry, settings)
        speed = speeds.get(f"{chosen}:{info.name}", 0.0)
        can = "" if "tools" in info.abilities else EDITS_ONLY if "edit" in info.abilities else "plain answers only"
        found.append(
            ModelOffer(
                name=info.name,
                provider=chosen,
                context=info.context,
                tokens_per_second=speed,
                price=info.price,
                note=can,
            )
        )
    if settings.text("router.fast") and settings.text("router.deep"):
        both = f"{settings.text('router.fast')} or {settings.text('router.deep')}, by the task"
        found.append(ModelOffer(name=AUTO, provider=chosen, note=both))
    have = {offer.name for offer in found}
    for folder in embedded_models():
        name = embedded_name(folder)
        if name not in have:
            speed = speeds.get(f"local:{name}", 0.0)
            found.append(
                ModelOffer(
                    name=f"local:{name}", provider="local", tokens_per_second=speed, note=f"embedded, {EDITS_ONLY}"
                )
            )
    if settings.flag("features.discovery"):
        found += await _on_this_machine(settings, speeds)
        for name in with_key_set():
            if name != chosen:
                key = KNOWN[name].env_key
                found.append(ModelOffer(name=f"{name}:", provider=name, note=f"${key} is set; asked when chosen"))
    return found


async def _on_this_machine(settings: Settings, speeds: dict[str, float]) -> list[ModelOffer]:
    places = {name: provider.base_url for name, provider in ON_THIS_MACHINE.items()}
    for name in settings.own_providers:
        if base_url := settings.values.get(("model_providers", name, "base_url")):
            places[name] = str(base_url)
    places.pop(settings.provider.id, None)
    return [
        ModelOffer(
            name=f"{provider}:{model}",
            provider=provider,
            context=context,
            tokens_per_second=speeds.get(f"{provider}:{model}", 0.0),
            price=settings.prices(model),
            note=KNOWN[provider].name if provider in KNOWN else "",
        )
        for provider, models in (await discover(places)).items()
        for model, context in models.items()
    ]
