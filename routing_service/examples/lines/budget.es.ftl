# Lo que dicen los agentes del asistente de presupuesto.

welcome = ¡Hola! Cuéntame qué has comprado, qué pagas cada mes, qué quieres apartar, o pídeme un plan.
goodbye = De nada. Tu dinero está en buenas manos: las tuyas.
what-about = Cuéntame un poco más: ¿has gastado algo, lo pagas cada mes, llenamos una hucha o prefieres un plan?
refused = Eso no es posible ahora. ¿Hacemos otra cosa?
to-transaction-classifier = Sobre tus gastos: un momento.
to-jar-manager = Para eso están las huchas.
to-fee-manager = Los pagos fijos es mejor apuntarlos.
to-budget-advisor = Buen momento para mirar el conjunto.

advice-income = Hagamos un plan. ¿Cuánto ganas al mes, en neto?
advice-income-help = Mira la última transferencia de tu empresa; con una cifra aproximada basta. ¿Cuánto fue?
advice-expense = ¿Y cuál es tu mayor gasto?
advice-expense-noted = Eso cuenta como necesidad, así que lo miramos primero.
advice-plan = Mi propuesta: { $needs } para lo que necesitas, { $wants } para lo que te apetece y { $savings } para ahorrar, el mismo día en que cobras.

jar-amount = ¿Cuánto quieres apartar cada mes?
jar-amount-help = Empieza por poco: lo que no echarías de menos en una semana. ¿Cuánto es?
jar-source = ¿De dónde sale el dinero: de tu sueldo o de otra hucha?
jar-source-suggest = Entonces te propongo tu sueldo, el día en que llega, antes de que puedas gastarlo. ¿De acuerdo?
jar-done = Hecho: una hucha nueva que recibe { $amount } cada mes.
jar-entry = Hucha { $number }: { $amount } cada mes
jar-list = Estas son tus huchas:
    { $jars }
jar-none = Todavía no tienes huchas. Dime para qué quieres apartar dinero.

fee-amount = ¿Cuánto es cada mes?
fee-amount-help = Está en tu extracto del banco, con su nombre. ¿Cuánto es?
fee-day = { $amount } cada mes. ¿Qué día se paga?
fee-day-help = Mira cuándo salió de tu cuenta el mes pasado. ¿Qué día fue?
fee-day-again = Necesito un día del mes, del 1 al 31. ¿Cuál es?
fee-done = { $count ->
    [one] Apuntado: { $amount } el día { $day } de cada mes. Es tu primer pago fijo aquí.
   *[other] Apuntado: { $amount } el día { $day } de cada mes. Ya tienes { $count } pagos fijos.
}

spending-category = { $amount }. ¿Era una necesidad o un capricho?
spending-category-help = Piensa si podrías haber pasado sin ello: si es así, era un capricho. ¿Qué era?
spending-category-again = Dime solo «necesidad» o «capricho». ¿Qué era?
spending-done-needs = Apuntado: { $amount } en lo que necesitas.
spending-done-wants = Apuntado: { $amount } en caprichos. ¡Que lo disfrutes!
spending-total = Hasta ahora me has contado { $total }.
spending-to-fees = Eso vuelve cada mes, así que va con tus pagos fijos.
