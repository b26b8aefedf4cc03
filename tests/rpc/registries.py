"""Small registries for tests, each as the text of its file.

Owns agents that differ in one thing each, so that a test can name the one it needs. An agent's id
says what is special about it.
"""

# A help desk. front routes; sales and support are plain specialists that stick.
DESK = """
api_version: agent_routing/v1
version: desk-1
supervisor: front
default_locale: en
limits: {hops_per_message: 4, return_depth: 2, open_turns: 4, turn_timeout: 10m}
agents:
  - {id: front, name: {en: Front desk, es: Recepción}}
  - id: sales
    aliases: [Sales Team]
    name: {en: Sales, es: Ventas}
    description: {en: What we sell., es: Lo que vendemos.}
    icon: cart
    color: "#3366ff"
    user_selectable: true
  - {id: support, name: {en: Support, es: Soporte}, user_selectable: true}
  - {id: asks_only, name: Asks only, sticks: follow_up, user_selectable: true}
  - {id: never_sticks, name: Never sticks, sticks: never}
  - {id: interrupts, name: Interrupts, receives_as: interlude, on_complete: return}
  - id: interrupts_briefly
    name: Interrupts briefly
    receives_as: interlude
    on_complete: return
    turns_max: 2
  - id: interrupts_and_asks
    name: Interrupts and asks
    receives_as: interlude
    on_complete: return
    sticks: follow_up
  - {id: premium, name: Premium, requires: ["plan:premium"], user_selectable: true}
  - {id: on_web, name: On web, channels: [web], user_selectable: true}
  - {id: disabled, name: Disabled, enabled: false, user_selectable: true}
  - {id: journal, name: Journal, kind: system, user_selectable: true}
  - {id: narrow, name: Narrow, handoff_to: [sales]}
  - {id: not_selectable, name: Not selectable}
  - id: owner
    name: Owner
    owns_session: true
    handoff_to: [sales, interrupts]
    user_selectable: true
  - {id: writes_markers, name: Writes markers, markers: true, handoff_to: [sales, interrupts]}
  - id: completes_to_support
    name: Completes to support
    on_complete: support
    on_complete_message: {en: Over to support., es: Sigue soporte.}
  - {id: completes_to_disabled, name: Completes to disabled, on_complete: disabled}
  - {id: completes_to_front, name: Completes to front, on_complete: front}
  - {id: completes_and_stays, name: Completes and stays, on_complete: stay}
  - {id: idles, name: Idles, idle_timeout: 20m}
  - {id: owns_and_idles, name: Owns and idles, owns_session: true, idle_timeout: 20m}
"""

# A swarm: there is no supervisor; greeter is the default agent.
SWARM = """
api_version: agent_routing/v1
version: swarm-1
default_agent: greeter
default_locale: en
agents:
  - {id: greeter, name: {en: Greeter, es: Anfitriona}, user_selectable: true}
  - {id: flights, name: {en: Flights, es: Vuelos}, user_selectable: true}
  - {id: hotels, name: {en: Hotels, es: Hoteles}, user_selectable: true}
  - {id: comforts, name: Comforts, receives_as: interlude, on_complete: return}
"""
