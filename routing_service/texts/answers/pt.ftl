# O que os usuários respondem à oferta de outro agente, por tipos (veja plain_answers.py).

yes =
    sim | claro | claro que sim | com certeza | certeza | certo | isso | isso mesmo | isso aí |
    exato | exatamente | óbvio | lógico | positivo | sim quero | quero | quero sim | aceito |
    confirmo | pode | pode sim | pode ser | podemos | por favor | bora | bora lá | vamos | vamos lá
    | vamos nessa | manda | manda ver | manda bala | topo | partiu | demorou | fechou | fechado | tá
    bom | está bom | tá | tá certo | aham | uhum | sim senhor | sim senhora | com prazer | acho que
    sim | faz sentido | tudo bem | pode crer | s | ss | simm | é | é isso | gostaria | eu quero |
    por mim sim | de acordo | boa ideia
fine =
    ok | okay | beleza | blz | perfeito | ótimo | legal | bom | muito bem | bem | joia | show |
    massa | tranquilo | combinado | certinho | valeu | maravilha | excelente | tá ok
switch =
    mudar | muda | mude | pode mudar | quero mudar | vamos mudar | trocar | troca | troque | pode
    trocar | quero trocar | me muda | me troca | faça | faz | faz isso | faça isso | pode fazer | me
    passa | me passe | passa | pode passar | me transfere | me transfira | transfere | transfira |
    pode transferir | transferir | conecta | me conecta | me conecte | conectar | pode conectar | me
    leva | me leve | me encaminha | me encaminhe | encaminha | pode encaminhar | quero falar |
    prefiro mudar | segue em frente | pode ir | vai | vá | vai lá | liga | me põe | me coloca |
    passe-me | ligue-me | transfira-me | força
please =
    por favor | por gentileza | pfv | pf | pfvr | faz favor | se puder | se possível
thanks =
    obrigado | obrigada | muito obrigado | muito obrigada | brigado | brigada | obg | valeu | grato
    | grata
filler =
    ah | oh | é | eh | então | bom | bem | hum | hmm | pois | agora | agora mesmo | já | olha | oi |
    kkk | né | eu | mas | e | melhor | pois bem | lá | logo
no =
    não | nao | n | nn | naum | não obrigado | não obrigada | agora não | ainda não | por enquanto
    não | não agora | não ainda | depois | mais tarde | outra hora | outro dia | outro momento |
    melhor não | não quero | não quero mudar | não precisa | não preciso | não é necessário | não
    mude | não muda | não troque | não troca | não mudar | claro que não | de jeito nenhum | de
    maneira nenhuma | nem pensar | negativo | nunca | prefiro não | acho que não | deixa | deixa pra
    lá | deixa para lá | deixe | deixa assim | deixa quieto | cancelar | cancela | nenhum | nenhuma
    | não senhor | não senhora | nem | dispenso | não faça | não faz isso | melhor depois | melhor
    mais tarde | não não | tô bem | estou bem | não por agora | por agora não
stay =
    continuar | continua | continue | continuo | continuamos | vamos continuar | quero continuar |
    seguir | seguimos | seguindo | ficar | fico | fica | quero ficar | prefiro ficar | prefiro
    continuar | fico aqui | ficar aqui | continuar aqui | aqui | assim | como está | como estava |
    do jeito que está | com você | contigo | prefiro | permanecer
link =
    a | ao | à | com | com o | com a | o | os | as | de | do | da | para | para o | para a | pra |
    pro | me | por | em | opção | opcao | número | numero | a opção | o número | que
first =
    um | uma | primeiro | primeira | o primeiro | a primeira | a 1 | o 1 | opção 1 | número 1
second =
    dois | duas | segundo | segunda | o segundo | a segunda | a 2 | o 2 | opção 2 | número 2
