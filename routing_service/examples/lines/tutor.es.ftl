# Lo que dicen los agentes del tutor escolar.

welcome = ¡Hola! Me alegra verte. Podemos practicar fracciones o verbos irregulares en inglés. ¿Qué prefieres?
goodbye = ¡Hasta pronto! Hoy lo has hecho muy bien.
what-about = Me encantaría ayudarte. ¿Fracciones o verbos irregulares en inglés?
refused = Ese profesor no está ahora. ¿Probamos con otra cosa?
to-math-specialist = ¡Pues fracciones! Nuestra especialista en matemáticas es la persona indicada; te paso con ella.
to-language-specialist = ¡Pues verbos! Nuestro especialista en lengua lo está deseando; te paso con él.

lesson-right = ¡Exacto!
lesson-wrong = No del todo, pero vas por buen camino.
lesson-off-topic = ¡Buena pregunta! La dejamos para después de la lección.
lesson-back = Qué bien que estés de vuelta. ¿Por dónde íbamos?
lesson-frustrated = Veo que esto te está cansando. Hagamos una pequeña pausa. [HANDOFF_TO:motivator]
lesson-complete = Era el último, ¡y lo has conseguido!

math-start = Vamos a sumar y restar fracciones.
math-1 = ¿Cuánto es 1/4 + 2/4?
math-1-hint = Cuando los números de abajo son iguales, solo sumas los de arriba: 1 + 2. ¿Cuánto es entonces 1/4 + 2/4?
math-2 = ¿Cuánto es 1/2 + 1/3?
math-2-hint = Primero iguala los números de abajo: 1/2 es 3/6 y 1/3 es 2/6. ¿Cuánto es entonces 1/2 + 1/3?
math-3 = ¿Cuánto es 3/4 - 1/4? Hazlo lo más corto que puedas.
math-3-hint = A 3 le quitas 1 y el número de abajo se queda como está. ¿Cuánto es entonces 3/4 - 1/4?
math-test-1 = Primera pregunta: ¿cuánto es 1/5 + 2/5?
math-test-2 = Segunda pregunta: ¿cuánto es 3/4 - 1/2?

language-start = Los verbos irregulares tienen un pasado propio.
language-1 = ¿Cuál es el pasado de «to eat»?
language-1-hint = Tiene tres letras y suena como el número ocho en inglés. ¿Cuál es el pasado de «to eat»?
language-2 = ¿Cuál es el pasado de «to go»?
language-2-hint = Parece otra palabra y empieza por w. ¿Cuál es el pasado de «to go»?
language-3 = ¿Cuál es el pasado de «to write»?
language-3-hint = La i se convierte en o. ¿Cuál es el pasado de «to write»?
language-test-1 = Primera pregunta: ¿cuál es el pasado de «to see»?
language-test-2 = Segunda pregunta: ¿cuál es el pasado de «to give»?

motivator-ask = A todo el mundo le pasa a veces, y ya has llegado muy lejos. ¿Qué es lo que más te cuesta?
motivator-encourage = Eso es justo lo que le cuesta a todo el mundo, y acabas de ponerle nombre: ya tienes medio camino hecho. ¡De vuelta a la lección, paso a paso!
motivator-again = No hace falta que lo sepas. Respira hondo y de vuelta a la lección, ¡paso a paso!
motivator-pep = Estírate, mira por la ventana, cuenta hasta diez. ¿Listo? ¡Estás más cerca del final de lo que crees!

test-right = ¡Correcto!
test-wrong = La respuesta es { $answer }.
test-off-topic = Terminemos primero la prueba, que es corta.
test-frustrated = Los exámenes no son divertidos. Hay alguien que quiere decirte algo.
test-result = Has acertado { $right } de { $questions }. ¡Muy bien por no rendirte!
