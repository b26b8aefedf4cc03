# Palavras com que começa o nome de um agente que é um papel ("Assistente principal") e não um nome
# próprio ou uma área. Levam artigo; a terminação diz o gênero das outras.

article-masculine = o
article-feminine = a

masculine =
    assistente | agente | ajudante | gerente | técnico | perito | médico | advogado | conselheiro |
    enfermeiro | secretário | chefe | anfitrião | guia | bot | robô | serviço | departamento |
    centro | encarregado | professor | mentor | psicólogo | farmacêutico | engenheiro |
    administrativo | atendente

feminine =
    técnica | perita | médica | advogada | conselheira | enfermeira | secretária | anfitriã | equipe |
    equipa | encarregada | professora | mentora | psicóloga | farmacêutica | engenheira

# Terminam como um papel e não o são.
neither =
    lista | vista | pista | revista | entrevista | conquista | salvador | equador | vítor | victor |
    heitor | isadora | teodora | dora
