# O que os agentes do assistente de orçamento dizem.

welcome = Olá! Conte o que você comprou, o que paga todo mês, o que quer guardar, ou peça um plano.
goodbye = De nada. O seu dinheiro está em boas mãos: as suas.
what-about = Conte um pouco mais: você gastou algo, é um pagamento de todo mês, enchemos um pote ou prefere um plano?
refused = Isso não é possível agora. Fazemos outra coisa?
to-transaction-classifier = Sobre os seus gastos: um momento.
to-jar-manager = É para isso que servem os potes.
to-fee-manager = Pagamentos fixos é melhor anotar.
to-budget-advisor = Boa hora para olhar o conjunto.

advice-income = Vamos fazer um plano. Quanto você ganha por mês, líquido?
advice-income-help = Veja o último depósito da sua empresa; um valor aproximado basta. Quanto foi?
advice-expense = E qual é o seu maior gasto?
advice-expense-noted = Isso conta como necessidade, então olhamos primeiro.
advice-plan = A minha proposta: { $needs } para o que você precisa, { $wants } para o que você quer e { $savings } para poupar, no mesmo dia em que recebe.

jar-amount = Quanto você quer guardar por mês?
jar-amount-help = Comece com pouco: o que não faria falta numa semana. Quanto é?
jar-source = De onde vem o dinheiro: do seu salário ou de outro pote?
jar-source-suggest = Então proponho o seu salário, no dia em que chega, antes que você possa gastá-lo. De acordo?
jar-done = Feito: um pote novo que recebe { $amount } por mês.
jar-entry = Pote { $number }: { $amount } por mês
jar-list = Estes são os seus potes:
    { $jars }
jar-none = Você ainda não tem potes. Diga para que quer guardar dinheiro.

fee-amount = Quanto é por mês?
fee-amount-help = Está no extrato do banco, com o nome. Quanto é?
fee-day = { $amount } por mês. Em que dia se paga?
fee-day-help = Veja quando saiu da sua conta no mês passado. Que dia foi?
fee-day-again = Preciso de um dia do mês, de 1 a 31. Qual é?
fee-done = { $count ->
    [one] Anotado: { $amount } no dia { $day } de cada mês. É o seu primeiro pagamento fixo aqui.
   *[other] Anotado: { $amount } no dia { $day } de cada mês. Você já tem { $count } pagamentos fixos.
}

spending-category = { $amount }. Era uma necessidade ou um desejo?
spending-category-help = Pense se você poderia ter passado sem isso: se sim, era um desejo. O que era?
spending-category-again = Diga só “necessidade” ou “desejo”. O que era?
spending-done-needs = Anotado: { $amount } no que você precisa.
spending-done-wants = Anotado: { $amount } em desejos. Aproveite!
spending-total = Até agora você me contou { $total }.
spending-to-fees = Isso volta todo mês, então vai com os seus pagamentos fixos.
