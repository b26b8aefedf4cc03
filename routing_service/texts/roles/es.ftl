# Palabras con las que empieza el nombre de un agente que es un papel ("Asistente principal") y no un
# nombre propio o un área. Llevan artículo; la terminación dice el género de las demás.

article-masculine = el
article-feminine = la

masculine =
    asistente | agente | ayudante | gerente | experto | técnico | maestro | médico | abogado |
    consejero | enfermero | secretario | jefe | anfitrión | guía | bot | robot | equipo | servicio |
    departamento | centro | encargado | profesor | mentor | operario | cajero | psicólogo |
    farmacéutico | ingeniero | administrativo

feminine =
    asistenta | experta | técnica | maestra | médica | abogada | consejera | enfermera | secretaria |
    jefa | anfitriona | oficina | mesa | encargada | profesora | mentora | operaria | cajera |
    psicóloga | farmacéutica | ingeniera | administrativa

# Terminan como un papel y no lo son.
neither =
    lista | vista | pista | revista | entrevista | conquista | salvador | ecuador | víctor | victor |
    héctor | hector | néstor | nestor | pandora | isadora | teodora | dora
